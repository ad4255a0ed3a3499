// What the translation units share: the packed model, the batch of a step and the memory of its intermediate results.
// Plain data only. Code that is compiled for one instruction set must never be shared, so the helpers are static.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace weir {

typedef uint16_t bf16;

constexpr int kLanes = 16;              // float32 lanes of a vector, whatever the machine's registers
constexpr int kPanelCols = 2 * kLanes;  // outputs in a panel of packed weights
constexpr int kStepInputs = 8;          // inputs that one step of the GEMM loop takes; inputs are padded to a multiple
constexpr int kGroupTokens = kLanes;    // tokens that lie together in the KV cache

// Weights [num_outputs, num_inputs] of a linear layer in the order in which the GEMM reads them. A panel holds 32
// outputs; in it, for each pair of inputs (k, k + 1) lie the 32 pairs of weights, so a vector of pairs serves 16
// outputs:
//
//   panels[output / 32][k / 2][output % 32][k % 2]      zero where the output or the input is only padding
//
// A panel is one linear stream of 64 bytes an input.
struct PackedMatrix {
  bf16* panels;
  int32_t num_outputs;
  int32_t num_inputs;
};

static inline int num_panels(const PackedMatrix& w) { return (w.num_outputs + kPanelCols - 1) / kPanelCols; }
static inline int num_steps(const PackedMatrix& w) { return (w.num_inputs + kStepInputs - 1) / kStepInputs; }
static inline size_t panel_elements(const PackedMatrix& w) { return (size_t)num_steps(w) * kStepInputs * kPanelCols; }
static inline bf16* panel(const PackedMatrix& w, int i) { return w.panels + (size_t)i * panel_elements(w); }

// Filled by the caller through the C interface; mirrored in library.py.
struct ModelShape {
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size;
  int32_t qkv_bias, output_bias, qk_norm;
  float rms_norm_eps;
};

struct Layer {
  PackedMatrix qkv, output, gate_up, down;
  float *attention_norm, *mlp_norm;  // [hidden_size]
  float* qkv_bias;                   // [(num_heads + 2 num_kv_heads) * head_dim], null: none
  float* output_bias;                // [hidden_size], null: none
  float *q_norm, *k_norm;            // [head_dim], null: none
  int32_t sliding_window;            // positions a token sees, itself included; 0: all
};

struct Model {
  ModelShape shape;
  Layer* layers;
  PackedMatrix lm_head;
  const bf16* embedding;  // [vocab_size, hidden_size], the caller's; null when tied: rows are read from lm_head
  float* final_norm;      // [hidden_size]
  const float *cos, *sin;  // [num_positions, head_dim / 2], the caller's
  int64_t num_positions;
  size_t fetch_bytes;  // KV that is brought into the last-level cache before a layer's attention
};

// The KV cache of a layer is [block][kv head][block_size / 16][K group, V group], bf16. A group holds 16 tokens:
//
//   K group [dim / 2][token 0..15][dim % 2]     a vector of pairs holds two dims of 16 tokens: 16 scores need no
//                                               horizontal sum
//   V group [token / 2][dim][token % 2]         a vector of pairs holds two tokens of 16 dims
//
// with head_dim padded to a multiple of 16. One (block, kv head) is contiguous.
static inline int padded_head_dim(const ModelShape& s) { return (s.head_dim + kLanes - 1) / kLanes * kLanes; }
static inline size_t kv_group_elements(const ModelShape& s) { return (size_t)2 * kGroupTokens * padded_head_dim(s); }
static inline size_t kv_head_elements(const ModelShape& s, int block_size) {
  return (size_t)(block_size / kGroupTokens) * kv_group_elements(s);
}
static inline size_t kv_block_elements(const ModelShape& s, int block_size) {
  return kv_head_elements(s, block_size) * s.num_kv_heads;
}

// A ragged batch; see weir_kernels/ragged.py. Mirrored in library.py.
struct StepBatch {
  const int64_t *token_ids, *positions, *slot_mapping;  // [num_tokens]
  const int32_t* cu_seqlens;                            // [num_seqs + 1]
  const int32_t* seq_lens;                              // [num_seqs]
  const int32_t* block_tables;                          // [num_seqs, max_blocks]
  const int64_t* logit_rows;                            // [num_logit_rows]
  bf16* kv;                                             // [num_layers, num_blocks, kv_block_elements]
  float* logits;                                        // [num_logit_rows, vocab_size], null: not wanted
  int64_t* greedy_ids;                                  // [num_logit_rows], null: not wanted
  int64_t num_blocks;
  int32_t block_size, num_tokens, num_seqs, max_blocks, num_logit_rows;
};

// Where the time of a step goes, for benchmarks. Mirrored in library.py.
enum Phase { kEmbed, kQkv, kKvWrite, kAttention, kOutput, kNorm, kGateUp, kDown, kLmHead, kNumPhases };

// A run of query tokens of one sequence, to be attended by one thread for one KV head.
struct AttentionItem {
  int32_t sequence;
  int32_t first_query, num_queries;  // within the sequence's tokens of this batch
  int32_t first_split, end_split;    // the KV splits this item covers
  int32_t partial;                   // index of its partial result when other items cover the other splits, or -1
};

struct alignas(64) PhaseCounter {
  int32_t taken;
};

struct PhaseBarrier {
  alignas(64) int32_t arrived;
  alignas(64) int32_t generation;
  alignas(64) int32_t sleepers;
};

// The memory of a step's intermediate results, sized for the largest step seen.
struct Workspace {
  // Row strides in elements. The bf16 ones are odd multiples of a cache line: with a power of two the rows of a tile
  // would compete for the same few lines of the L1 cache.
  size_t hidden_stride, normed_stride, qkv_stride, attended_stride, activated_stride;
  float* hidden;         // [tokens, hidden]: the residual stream, float32
  bf16* normed;          // [tokens, hidden]
  float* qkv;            // [tokens, (heads + 2 kv heads) * head_dim]
  bf16* attended;        // [tokens, heads * head_dim]
  bf16* activated;       // [tokens, intermediate]
  float* kept_hidden;    // [logit rows, hidden]: after the last attention only the rows that want logits go on
  bf16* kept_attended;   // [logit rows, heads * head_dim]
  float* best_logit;     // [threads, logit rows, 32]
  int32_t* best_id;      // [threads, logit rows, 32]
  float* partials;       // [partials, heads, padded head_dim + 2]: unscaled output, maximum, sum of a split
  int32_t* num_splits;   // [seqs]: items that share a sequence's KV
  int32_t* splits_done;  // [seqs, kv heads], zero between phases
  AttentionItem* items;
  int32_t num_items;
  int32_t num_decodes;  // sequences before the first that has more than one token
  char* attention_scratch;  // [threads, attention_scratch_bytes]
  size_t attention_scratch_bytes;
  PhaseCounter* counters;  // [2, threads], zero at the start of the step
  PhaseBarrier* barrier;
};

// One instruction set's code.
struct Kernels {
  const char* name;
  size_t (*attention_scratch_bytes)(const ModelShape&);
  void (*run_step)(const Model&, const StepBatch&, Workspace&, int thread, int num_threads, double* phase_seconds);
};

// library.cpp names those that the compiler could build.
extern const Kernels kAvx512Bf16Kernels, kAvx512Kernels, kAvx2Kernels;

// Canonical sizes of attention. A row's result depends on them, so they depend on nothing: not on the batch, the
// chunk, the block size or the number of threads.
constexpr int kTileTokens = 4 * kGroupTokens;
constexpr int kSplitTokens = 512;

// Query tokens that one item takes of a chunk: the rows of a block of K and V are read once for about 48 query rows.
static inline int queries_per_item(const ModelShape& s) {
  const int group = s.num_heads / s.num_kv_heads;
  return group >= 48 ? 1 : 48 / group;
}

}  // namespace weir
