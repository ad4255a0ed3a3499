// The C interface of the library: build a packed model, run steps. Compiled for the baseline instruction set.
//
// Functions return 0, or a message that says what was wrong; no exception leaves the library.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <new>
#include <vector>

#include "model.h"

namespace weir {
namespace {

// Memory from the system, huge pages where it grants them: with small pages the walk over weights and KV is bound by
// address translation.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { release(); }

  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    release();
    void* p = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    mapping_ = p;
    bytes_ = bytes;
    begin_ = (char*)(((uintptr_t)p + kHuge - 1) / kHuge * kHuge);
    madvise(begin_, bytes, MADV_HUGEPAGE);
  }
  char* begin() const { return begin_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kHuge = 2 << 20;
  void release() {
    if (mapping_ != nullptr) munmap(mapping_, bytes_ + kHuge);
    mapping_ = nullptr;
  }
  void* mapping_ = nullptr;
  char* begin_ = nullptr;
  size_t bytes_ = 0;
};

// Lays arrays out one after the other, each on its own cache lines. With `base` null it only counts.
class Layout {
 public:
  explicit Layout(char* base) : base_(base) {}
  template <class T>
  T* take(size_t count) {
    T* p = base_ == nullptr ? nullptr : (T*)(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return p;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Elements between rows of activations: zero-padded inputs for the GEMM, and an odd number of cache lines.
size_t odd_line_stride(size_t columns) {
  size_t lines = round_up(columns, 32) / 32;
  return (lines % 2 == 0 ? lines + 1 : lines) * 32;
}

// Bytes of the largest cache that the first processor sees, 0 if the system doesn't tell. sysconf adds up the caches of
// all processors on some machines.
size_t last_level_cache_bytes() {
  size_t kib = 0;
  for (int index = 0; index < 8; ++index) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    FILE* file = fopen(path, "r");
    if (file == nullptr) break;
    size_t size = 0;
    if (fscanf(file, "%zuK", &size) == 1 && size > kib) kib = size;
    fclose(file);
  }
  return kib << 10;
}

// The instruction sets that were compiled and that this machine has, best first.
std::vector<const Kernels*> usable_kernels() {
  __builtin_cpu_init();
  [[maybe_unused]] const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  std::vector<const Kernels*> usable;
#ifdef WEIR_HAVE_AVX512_BF16
  if (avx512 && __builtin_cpu_supports("avx512bf16")) usable.push_back(&kAvx512Bf16Kernels);
#endif
#ifdef WEIR_HAVE_AVX512
  if (avx512) usable.push_back(&kAvx512Kernels);
#endif
#ifdef WEIR_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) usable.push_back(&kAvx2Kernels);
#endif
  return usable;
}

}  // namespace

struct Engine {
  Model model{};
  const Kernels* kernels = nullptr;
  std::vector<Layer> layers;
  Arena weights, scratch;
  Workspace workspace{};
  std::vector<AttentionItem> items;
  std::vector<int32_t> num_splits, splits_done;

  Engine(const ModelShape& shape, const Kernels* k) : kernels(k), layers(shape.num_layers) {
    model.shape = shape;
    model.layers = layers.data();
    model.fetch_bytes = last_level_cache_bytes() / 2;  // weights pass through it too, and others may share it
    Layout count(nullptr);
    lay_out_weights(count);
    weights.reserve(count.used());
    Layout place(weights.begin());
    lay_out_weights(place);
  }

  void lay_out_weights(Layout& memory) {
    const ModelShape& s = model.shape;
    const int heads = s.num_heads + 2 * s.num_kv_heads;
    const int interleaved = (int)round_up(s.intermediate_size, kLanes) * 2;
    auto matrix = [&memory](PackedMatrix& w, int outputs, int inputs) {
      w.num_outputs = outputs;
      w.num_inputs = inputs;
      w.panels = memory.take<bf16>(panel_elements(w) * num_panels(w));
    };
    for (Layer& layer : layers) {
      matrix(layer.qkv, heads * s.head_dim, s.hidden_size);
      matrix(layer.output, s.hidden_size, s.num_heads * s.head_dim);
      matrix(layer.gate_up, interleaved, s.hidden_size);
      matrix(layer.down, s.hidden_size, s.intermediate_size);
      layer.attention_norm = memory.take<float>(s.hidden_size);
      layer.mlp_norm = memory.take<float>(s.hidden_size);
      if (s.qkv_bias) layer.qkv_bias = memory.take<float>((size_t)heads * s.head_dim);
      if (s.output_bias) layer.output_bias = memory.take<float>(s.hidden_size);
      if (s.qk_norm) layer.q_norm = memory.take<float>(s.head_dim);
      if (s.qk_norm) layer.k_norm = memory.take<float>(s.head_dim);
    }
    matrix(model.lm_head, s.vocab_size, s.hidden_size);
    model.final_norm = memory.take<float>(s.hidden_size);
  }

  void plan_attention(const StepBatch& b) {
    const ModelShape& s = model.shape;
    const int block = queries_per_item(s);
    items.clear();
    num_splits.assign(b.num_seqs, 0);
    splits_done.assign((size_t)b.num_seqs * s.num_kv_heads, 0);
    int first_chunk = 0;
    while (first_chunk < b.num_seqs && b.cu_seqlens[first_chunk + 1] - b.cu_seqlens[first_chunk] <= 1) ++first_chunk;
    workspace.num_decodes = first_chunk;
    // Long work first, so that the threads finish together: chunks, their last queries first, then decodes.
    for (int i = first_chunk; i < b.num_seqs; ++i) {
      const int tokens = b.cu_seqlens[i + 1] - b.cu_seqlens[i];
      for (int first = (tokens - 1) / block * block; first >= 0 && tokens > 0; first -= block) {
        const int queries = tokens - first < block ? tokens - first : block;
        const int seen = b.seq_lens[i] - tokens + first + queries;
        items.push_back({i, first, queries, 0, (seen + kSplitTokens - 1) / kSplitTokens, -1});
      }
    }
    int partials = 0;
    for (int i = 0; i < first_chunk; ++i) {
      if (b.cu_seqlens[i + 1] == b.cu_seqlens[i]) continue;
      const int splits = (b.seq_lens[i] + kSplitTokens - 1) / kSplitTokens;
      num_splits[i] = splits;
      if (splits == 1) items.push_back({i, 0, 1, 0, 1, -1});
      for (int split = 0; split < splits && splits > 1; ++split)
        items.push_back({i, 0, 1, split, split + 1, partials++});
    }
    workspace.items = items.data();
    workspace.num_items = (int32_t)items.size();
    workspace.num_splits = num_splits.data();
    workspace.splits_done = splits_done.data();
    num_partials = partials;
  }

  void lay_out_workspace(Layout& memory, const StepBatch& b, int threads) {
    const ModelShape& s = model.shape;
    Workspace& w = workspace;
    const size_t tokens = b.num_tokens, rows = b.num_logit_rows;
    const size_t normed_rows = tokens > rows ? tokens : rows;
    const size_t head_columns = (size_t)s.num_heads * s.head_dim;
    w.hidden_stride = round_up(s.hidden_size, kLanes);
    w.normed_stride = odd_line_stride(s.hidden_size);
    w.qkv_stride = round_up(head_columns + 2 * (size_t)s.num_kv_heads * s.head_dim, kLanes);
    w.attended_stride = odd_line_stride(head_columns);
    w.activated_stride = odd_line_stride(s.intermediate_size);
    w.counters = memory.take<PhaseCounter>(2 * (size_t)threads);
    w.barrier = memory.take<PhaseBarrier>(1);
    w.hidden = memory.take<float>(tokens * w.hidden_stride);
    w.normed = memory.take<bf16>(normed_rows * w.normed_stride);
    w.qkv = memory.take<float>(tokens * w.qkv_stride);
    w.attended = memory.take<bf16>(tokens * w.attended_stride);
    w.activated = memory.take<bf16>(normed_rows * w.activated_stride);
    w.kept_hidden = memory.take<float>(rows * w.hidden_stride);
    w.kept_attended = memory.take<bf16>(rows * w.attended_stride);
    const size_t lanes = b.greedy_ids == nullptr ? 0 : (size_t)threads * rows * kPanelCols;
    w.best_logit = memory.take<float>(lanes);
    w.best_id = memory.take<int32_t>(lanes);
    w.partials = memory.take<float>((size_t)num_partials * s.num_heads * (padded_head_dim(s) + kLanes));
    w.attention_scratch_bytes = round_up(kernels->attention_scratch_bytes(s), 4096);
    w.attention_scratch = memory.take<char>(w.attention_scratch_bytes * threads);
  }

  // The columns from a row's length to its stride must be zero; a layout for another batch leaves other rows' data
  // there.
  void clear_padding(bf16* rows, size_t count, size_t stride, size_t columns) {
    for (size_t r = 0; r < count; ++r) memset(rows + r * stride + columns, 0, (stride - columns) * sizeof(bf16));
  }

  const char* step(const StepBatch& b, int threads, double* phase_seconds) {
    const ModelShape& s = model.shape;
    if (const char* wrong = check(b)) return wrong;
    plan_attention(b);
    Layout count(nullptr);
    lay_out_workspace(count, b, threads);
    scratch.reserve(count.used());
    Layout place(scratch.begin());
    lay_out_workspace(place, b, threads);
    const size_t rows = b.num_tokens > b.num_logit_rows ? b.num_tokens : b.num_logit_rows;
    clear_padding(workspace.normed, rows, workspace.normed_stride, s.hidden_size);
    clear_padding(workspace.attended, b.num_tokens, workspace.attended_stride, (size_t)s.num_heads * s.head_dim);
    clear_padding(workspace.kept_attended, b.num_logit_rows, workspace.attended_stride,
                  (size_t)s.num_heads * s.head_dim);
    clear_padding(workspace.activated, rows, workspace.activated_stride, s.intermediate_size);
    memset(workspace.counters, 0, 2 * (size_t)threads * sizeof(PhaseCounter));
    memset(workspace.barrier, 0, sizeof(PhaseBarrier));
#pragma omp parallel num_threads(threads)
    kernels->run_step(model, b, workspace, omp_get_thread_num(), omp_get_num_threads(), phase_seconds);
    return nullptr;
  }

  // What would read or write outside memory. The engine promises all of it; a promise broken in C++ is a crash without
  // a message.
  const char* check(const StepBatch& b) const {
    const int32_t block_size = b.block_size;
    if (block_size <= 0 || block_size % kGroupTokens != 0) return "block_size is not a multiple of 16";
    if (b.num_tokens <= 0 || b.num_seqs <= 0) return "a batch needs at least one token and one sequence";
    if (b.cu_seqlens[0] != 0 || b.cu_seqlens[b.num_seqs] != b.num_tokens) return "cu_seqlens does not span the tokens";
    for (int i = 0; i < b.num_tokens; ++i) {
      if (b.token_ids[i] < 0 || b.token_ids[i] >= model.shape.vocab_size) return "a token id is outside the vocabulary";
      if (b.positions[i] < 0 || b.positions[i] >= model.num_positions) return "a position is outside the rope table";
      if (b.slot_mapping[i] >= b.num_blocks * block_size) return "a slot is outside the KV cache";
    }
    for (int i = 0; i < b.num_seqs; ++i) {
      const int32_t tokens = b.cu_seqlens[i + 1] - b.cu_seqlens[i];
      if (tokens < 0) return "cu_seqlens descends";
      if (b.seq_lens[i] < tokens) return "seq_lens is smaller than the tokens of this batch";
      const int32_t blocks = (b.seq_lens[i] + block_size - 1) / block_size;
      if (blocks > b.max_blocks) return "seq_lens is larger than the block table";
      for (int j = 0; j < blocks; ++j) {
        const int32_t id = b.block_tables[(size_t)i * b.max_blocks + j];
        if (id < 0 || id >= b.num_blocks) return "a block table names a block outside the KV cache";
      }
    }
    for (int i = 0; i < b.num_logit_rows; ++i)
      if (b.logit_rows[i] < 0 || b.logit_rows[i] >= b.num_tokens) return "a logit row is outside the batch";
    return nullptr;
  }

  int num_partials = 0;
};

}  // namespace weir

using weir::Engine;

#define WEIR_EXPORT __attribute__((visibility("default")))

extern "C" {

// Name of the i-th best instruction set of this machine, null past the last.
WEIR_EXPORT const char* weir_cpu_isa(int i) {
  const auto usable = weir::usable_kernels();
  return i < (int)usable.size() ? usable[i]->name : nullptr;
}

// Null when the machine lacks the instruction set or the memory.
WEIR_EXPORT Engine* weir_cpu_create(const weir::ModelShape* shape, const char* isa) {
  try {
    for (const weir::Kernels* kernels : weir::usable_kernels())
      if (strcmp(kernels->name, isa) == 0) return new Engine(*shape, kernels);
  } catch (const std::bad_alloc&) {
  }
  return nullptr;
}

WEIR_EXPORT void weir_cpu_destroy(Engine* engine) { delete engine; }

WEIR_EXPORT size_t weir_cpu_weight_bytes(const Engine* engine) { return engine->weights.bytes(); }

// bf16 elements of one KV block of one layer.
WEIR_EXPORT int64_t weir_cpu_kv_block_elements(const weir::ModelShape* shape, int block_size) {
  return (int64_t)weir::kv_block_elements(*shape, block_size);
}

// matrix: 0 qkv, 1 output, 2 gate_up, 3 down, 4 lm_head (layer is ignored).
WEIR_EXPORT weir::PackedMatrix* weir_cpu_matrix(Engine* engine, int matrix, int layer) {
  if (matrix == 4) return &engine->model.lm_head;
  weir::Layer& l = engine->layers[layer];
  return matrix == 0 ? &l.qkv : matrix == 1 ? &l.output : matrix == 2 ? &l.gate_up : &l.down;
}

// Put rows [num_rows, num_inputs] (contiguous bf16) at outputs first_output + (r / 16) * block_stride + r % 16 of a
// matrix; first_output is a multiple of 16. block_stride is 16, or 32 for gate (first_output 0) and up (16), which
// alternate in runs of 16 outputs.
WEIR_EXPORT void weir_cpu_pack(const weir::PackedMatrix* w, const weir::bf16* rows, int64_t num_rows,
                               int64_t first_output, int64_t block_stride, int threads) {
  const int64_t num_blocks = (num_rows + weir::kLanes - 1) / weir::kLanes;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t output = first_output + block * block_stride;
    const int64_t first = block * weir::kLanes, count = num_rows - first < weir::kLanes ? num_rows - first : weir::kLanes;
    // 16 outputs of an input pair are one cache line: it is written whole, while 16 rows are read in step.
    weir::bf16* to = weir::panel(*w, (int)(output / weir::kPanelCols)) + output % weir::kPanelCols * 2;
    const weir::bf16* from = rows + first * w->num_inputs;
    for (int k = 0; k < w->num_inputs; k += 2, to += 2 * weir::kPanelCols) {
      const size_t bytes = k + 1 < w->num_inputs ? 4 : 2;
      for (int64_t r = 0; r < count; ++r) memcpy(to + 2 * r, from + r * w->num_inputs + k, bytes);
    }
  }
}

// vector: 0 attention_norm, 1 mlp_norm, 2 qkv_bias, 3 output_bias, 4 q_norm, 5 k_norm, 6 final_norm (layer is ignored). The place of
// a float32 vector, null when the model has none.
WEIR_EXPORT float* weir_cpu_vector(Engine* engine, int vector, int layer) {
  if (vector == 6) return engine->model.final_norm;
  weir::Layer& l = engine->layers[layer];
  float* places[] = {l.attention_norm, l.mlp_norm, l.qkv_bias, l.output_bias, l.q_norm, l.k_norm};
  return places[vector];
}

// Tables and sizes that stay the caller's; they must live as long as the engine.
WEIR_EXPORT void weir_cpu_set_tables(Engine* engine, const weir::bf16* embedding, const float* cos, const float* sin,
                         int64_t num_positions) {
  engine->model.embedding = embedding;
  engine->model.cos = cos;
  engine->model.sin = sin;
  engine->model.num_positions = num_positions;
}

WEIR_EXPORT void weir_cpu_set_sliding_window(Engine* engine, int layer, int32_t window) {
  engine->layers[layer].sliding_window = window;
}

// phase_seconds: null, or kNumPhases sums that the step's times are added to.
WEIR_EXPORT const char* weir_cpu_step(Engine* engine, const weir::StepBatch* batch, int threads, double* phase_seconds) {
  try {
    return engine->step(*batch, threads, phase_seconds);
  } catch (const std::bad_alloc&) {
    return "out of memory for the step's intermediate results";
  }
}

// Bring the pages of freshly allocated memory in, huge ones where the system grants them. Done before serving: a step
// that touches a page for the first time waits for it to be found and cleared, which can take as long as the step, and a
// memory limit that is too low shows at start instead of under load.
WEIR_EXPORT void weir_cpu_commit(void* memory, size_t bytes, int threads) {
  constexpr uintptr_t kPage = 4096, kSlice = 32 << 20;
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  const uintptr_t begin = ((uintptr_t)memory + kPage - 1) / kPage * kPage;
  const uintptr_t end = ((uintptr_t)memory + bytes) / kPage * kPage;
  if (end <= begin) return;
  madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (uintptr_t slice = begin; slice < end; slice += kSlice) {
    const uintptr_t slice_end = end - slice < kSlice ? end : slice + kSlice;
    if (madvise((void*)slice, slice_end - slice, MADV_POPULATE_WRITE) == 0) continue;
    for (uintptr_t page = slice; page < slice_end; page += kPage) *(volatile char*)page = 0;  // Linux before 5.14
  }
}

}  // extern "C"
