// One step of the model over a ragged batch: every thread of the team calls run_step once.
//
// The step is a sequence of phases with a barrier after each. Work in a phase is handed out by a WorkQueue.
#pragma once

#include <time.h>

#include "attention.h"
#include "gemm.h"

namespace {

using weir::AttentionItem;
using weir::Layer;
using weir::Model;
using weir::Phase;
using weir::StepBatch;
using weir::Workspace;

constexpr float kLog2E = 1.4426950408889634f;

// The results of a panel of 32 outputs, by what becomes of them.

struct StoreFloat {  // out = x W^T (+ bias)
  float* out;
  size_t stride;
  int columns;
  const float* bias;

  void operator()(int row, int panel, const float* values) const {
    for (int half = 0; half < weir::kPanelCols; half += kLanes) {
      const int column = panel * weir::kPanelCols + half, n = columns - column;
      if (n <= 0) return;
      vf x = load(values + half);
      if (bias != nullptr) x = add(x, load_first(bias + column, n));
      store_first(out + (size_t)row * stride + column, x, n);
    }
  }
};

struct AddToHidden {  // hidden += x W^T (+ bias)
  float* hidden;
  size_t stride;
  int columns;
  const float* bias;

  void operator()(int row, int panel, const float* values) const {
    for (int half = 0; half < weir::kPanelCols; half += kLanes) {
      const int column = panel * weir::kPanelCols + half, n = columns - column;
      if (n <= 0) return;
      vf x = load(values + half);
      if (bias != nullptr) x = add(x, load_first(bias + column, n));
      float* to = hidden + (size_t)row * stride + column;
      store_first(to, add(load_first(to, n), x), n);
    }
  }
};

struct SiluMul {  // out = silu(gate) * up: a panel holds 16 gates and the 16 ups that belong to them
  bf16* out;
  size_t stride;
  int columns;

  void operator()(int row, int panel, const float* values) const {
    const int column = panel * kLanes;
    store_bf16_first(out + (size_t)row * stride + column, mul(silu(load(values)), load(values + kLanes)),
                     columns - column);
  }
};

struct KeepLargest {  // the largest logit of each lane and its id; panels arrive in ascending order, so the lowest id
  float* best;        // wins a tie within a lane
  int32_t* id;
  int columns;

  void operator()(int row, int panel, const float* values) const {
    for (int half = 0; half < weir::kPanelCols; half += kLanes) {
      const int column = panel * weir::kPanelCols + half;
      const vf x = keep_lanes(load(values + half), 0, columns - column, set1(kMinusInfinity));
      const size_t at = (size_t)row * weir::kPanelCols + half;
      keep_larger(best + at, id + at, x, column);
    }
  }
};

class Step {
 public:
  Step(const Model& model, const StepBatch& batch, Workspace& workspace, int thread, int num_threads, double* seconds)
      : model_(model),
        shape_(model.shape),
        batch_(batch),
        ws_(workspace),
        thread_(thread),
        threads_(num_threads),
        seconds_(thread == 0 ? seconds : nullptr),
        group_(shape_.num_heads / shape_.num_kv_heads),
        dim_(shape_.head_dim),
        padded_dim_(weir::padded_head_dim(shape_)),
        first_chunk_token_(batch.cu_seqlens[workspace.num_decodes]),
        scratch_(shape_, workspace.attention_scratch + thread * workspace.attention_scratch_bytes),
        kv_ahead_(model, batch, workspace, thread, num_threads) {}

  void run() {
    start_ = now();
    kv_ahead_.begin_layer(0);
    embed();
    float* hidden = ws_.hidden;
    for (int l = 0; l < shape_.num_layers; ++l) {
      const Layer& layer = model_.layers[l];
      const int qkv_columns = (shape_.num_heads + 2 * shape_.num_kv_heads) * dim_;
      product(normed(batch_.num_tokens), layer.qkv,
              StoreFloat{ws_.qkv, ws_.qkv_stride, qkv_columns, layer.qkv_bias}, weir::kQkv);
      write_chunks(l);
      attention(l);

      int rows = batch_.num_tokens;
      const bf16* attended = ws_.attended;
      const bool last = l == shape_.num_layers - 1;
      last ? kv_ahead_.end() : kv_ahead_.begin_layer(l + 1);
      if (last) {  // the other tokens have left their keys and values; nothing reads them any more
        keep_logit_rows();
        rows = batch_.num_logit_rows;
        hidden = ws_.kept_hidden;
        attended = ws_.kept_attended;
      }
      const AddToHidden residual{hidden, ws_.hidden_stride, shape_.hidden_size, nullptr};
      product(Rows{attended, ws_.attended_stride, rows}, layer.output,
              AddToHidden{hidden, ws_.hidden_stride, shape_.hidden_size, layer.output_bias}, weir::kOutput,
              &layer.gate_up, ws_.normed_stride);
      norm(hidden, rows, layer.mlp_norm);
      product(normed(rows), layer.gate_up, SiluMul{ws_.activated, ws_.activated_stride, shape_.intermediate_size},
              weir::kGateUp, &layer.down, ws_.activated_stride);
      product(Rows{ws_.activated, ws_.activated_stride, rows}, layer.down, residual, weir::kDown,
              last ? &model_.lm_head : &model_.layers[l + 1].qkv, ws_.normed_stride);
      norm(hidden, rows, last ? model_.final_norm : model_.layers[l + 1].attention_norm);
    }
    lm_head();
  }

 private:
  static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
  }

  void end_phase(Phase phase) {
    wait_for_all(*ws_.barrier, threads_);
    if (seconds_ == nullptr) return;
    const double t = now();
    seconds_[phase] += t - start_;
    start_ = t;
  }

  // The counters of this phase. There are two sets: while one is in use, each thread zeroes its counter of the other,
  // which nobody has used since the last barrier and nobody will before the next.
  weir::PhaseCounter* next_counters() {
    ws_.counters[(phase_ + 1) % 2 * threads_ + thread_].taken = 0;
    return ws_.counters + phase_++ % 2 * threads_;
  }
  // Row-wise phases hand out runs of rows: a row is too little work for an atomic.
  static constexpr int kRunRows = 4;
  WorkQueue row_runs(int rows) {
    return WorkQueue(next_counters(), (rows + kRunRows - 1) / kRunRows, thread_, threads_, Sharing::apart);
  }
  static int run_end(int run, int rows) { return run * kRunRows + kRunRows < rows ? run * kRunRows + kRunRows : rows; }

  Rows normed(int rows) const { return Rows{ws_.normed, ws_.normed_stride, rows}; }

  // next: the product that follows, of as many rows with this stride; null when attention or nothing does.
  template <class Finish>
  void product(const Rows& x, const PackedMatrix& w, const Finish& finish, Phase phase,
               const PackedMatrix* next = nullptr, size_t next_stride = 0) {
    const Rows next_x{nullptr, next_stride, x.count};
    const char* after = next == nullptr ? nullptr : (const char*)first_panel(next_x, *next, thread_, threads_);
    multiply(x, w, next_counters(), thread_, threads_, finish, after, kv_ahead_);
    end_phase(phase);
  }

  void norm_row(const float* hidden, int row, const float* weight) const {
    rms_norm(hidden + (size_t)row * ws_.hidden_stride, weight, shape_.hidden_size, shape_.rms_norm_eps,
             ws_.normed + (size_t)row * ws_.normed_stride);
  }

  void norm(const float* hidden, int rows, const float* weight) {
    WorkQueue runs = row_runs(rows);
    for (int run = runs.next(); run >= 0; run = runs.next())
      for (int row = run * kRunRows; row < run_end(run, rows); ++row) norm_row(hidden, row, weight);
    end_phase(weir::kNorm);
  }

  void embed() {
    WorkQueue runs = row_runs(batch_.num_tokens);
    for (int run = runs.next(); run >= 0; run = runs.next()) {
      for (int row = run * kRunRows; row < run_end(run, batch_.num_tokens); ++row) {
        const int64_t id = batch_.token_ids[row];
        float* out = ws_.hidden + (size_t)row * ws_.hidden_stride;
        // A tied model has its embedding in the panels of the lm_head only.
        if (model_.embedding != nullptr)
          widen_pairs(model_.embedding + (size_t)id * shape_.hidden_size, 2, out);
        else
          widen_pairs(panel(model_.lm_head, (int)(id / weir::kPanelCols)) + id % weir::kPanelCols * 2,
                      2 * weir::kPanelCols, out);
        norm_row(ws_.hidden, row, model_.layers[0].attention_norm);
      }
    }
    end_phase(weir::kEmbed);
  }

  // hidden_size bf16 values, a pair every `stride` elements, as float32.
  void widen_pairs(const bf16* in, size_t stride, float* out) const {
    for (int k = 0; k < shape_.hidden_size; k += 2, in += stride) {
      const uint32_t first = (uint32_t)in[0] << 16;
      __builtin_memcpy(out + k, &first, 4);
      if (k + 1 == shape_.hidden_size) break;
      const uint32_t second = (uint32_t)in[1] << 16;
      __builtin_memcpy(out + k + 1, &second, 4);
    }
  }

  bf16* layer_kv(int layer, int kv_head) const {
    return batch_.kv + (size_t)layer * batch_.num_blocks * kv_block_elements(shape_, batch_.block_size) +
           kv_head * kv_head_elements(shape_, batch_.block_size);
  }

  SequenceKv sequence_kv(int layer, int sequence, int kv_head) const {
    return SequenceKv{layer_kv(layer, kv_head), batch_.block_tables + (size_t)sequence * batch_.max_blocks,
                      kv_block_elements(shape_, batch_.block_size), weir::kv_group_elements(shape_),
                      batch_.block_size};
  }

  const float* cos_of(int token) const { return model_.cos + batch_.positions[token] * (dim_ / 2); }
  const float* sin_of(int token) const { return model_.sin + batch_.positions[token] * (dim_ / 2); }

  // The group of a slot; null for a token that is not to be written.
  bf16* group_of(int l, int token, int kv_head) const {
    const int64_t slot = batch_.slot_mapping[token];
    if (slot < 0) return nullptr;
    bf16* head = layer_kv(l, kv_head) + slot / batch_.block_size * kv_block_elements(shape_, batch_.block_size);
    return head + (size_t)(slot % batch_.block_size / kGroupTokens) * weir::kv_group_elements(shape_);
  }

  // A key is spread over all lines of its group. Without this each of its stores waits for memory, one after the other.
  void prefetch_group(int l, int token, int kv_head) const {
    const char* group = (const char*)group_of(l, token, kv_head);
    if (group == nullptr) return;
    for (size_t at = 0; at < weir::kv_group_elements(shape_) * sizeof(bf16); at += 64)
      __builtin_prefetch(group + at, 1, 2);
  }

  void write_kv(int l, int token, int kv_head) const {
    bf16* group = group_of(l, token, kv_head);
    if (group == nullptr) return;
    const int lane = (int)(batch_.slot_mapping[token] % kGroupTokens);
    const float* k = ws_.qkv + (size_t)token * ws_.qkv_stride + (size_t)(shape_.num_heads + kv_head) * dim_;
    alignas(64) bf16 key[kMaxHeadDim];
    prepare_head(k, model_.layers[l].k_norm, shape_.rms_norm_eps, cos_of(token), sin_of(token), dim_, padded_dim_, key);
    write_key(key, padded_dim_, group, lane);
    write_value(k + (size_t)shape_.num_kv_heads * dim_, dim_, padded_dim_,
                group + weir::kv_group_elements(shape_) / 2, lane);
  }

  // Keys and values of chunks, before any query of the chunk looks at them. A decode writes its own in the attention
  // phase, where the cache lines it touches are needed anyway.
  void write_chunks(int l) {
    const int first = first_chunk_token_, tokens = batch_.num_tokens - first;
    if (tokens == 0) return;
    WorkQueue runs = row_runs(tokens);
    for (int run = runs.next(); run >= 0; run = runs.next())
      for (int i = run * kRunRows; i < run_end(run, tokens); ++i) {
        for (int h = 0; h < shape_.num_kv_heads; ++h) {
          const bool new_group = batch_.slot_mapping[first + i] % kGroupTokens == 0;
          if (new_group && i + kGroupTokens < tokens) prefetch_group(l, first + i + kGroupTokens, h);
          write_kv(l, first + i, h);
        }
      }
    end_phase(weir::kKvWrite);
  }

  int first_token_of(const AttentionItem& item) const { return batch_.cu_seqlens[item.sequence] + item.first_query; }

  Mask mask_of(const AttentionItem& item, int l) const {
    const int begin = batch_.cu_seqlens[item.sequence], tokens = batch_.cu_seqlens[item.sequence + 1] - begin;
    return Mask{(int64_t)batch_.seq_lens[item.sequence] - tokens + item.first_query, model_.layers[l].sliding_window,
                group_};
  }

  Tile first_tile(int work, int l) const {
    const AttentionItem& item = ws_.items[work / shape_.num_kv_heads];
    const Mask mask = mask_of(item, l);
    const int rows = item.num_queries * group_;
    const int64_t first = mask.first(0), last = mask.last(rows - 1);
    int64_t begin = (int64_t)item.first_split * kSplitTokens;
    if (begin < first) begin = first / kTileTokens * kTileTokens;
    return Tile(sequence_kv(l, item.sequence, work % shape_.num_kv_heads), begin, first, last);
  }

  void attention(int l) {
    const int kv_heads = shape_.num_kv_heads;
    WorkQueue work(next_counters(), ws_.num_items * kv_heads, thread_, threads_, Sharing::together);
    for (int i = work.next(); i >= 0; i = work.next()) {
      const int following = work.peek() >= 0 ? work.peek() : i;
      const int token = first_token_of(ws_.items[following / kv_heads]);
      if (token < first_chunk_token_) prefetch_group(l, token, following % kv_heads);
      attend(l, ws_.items[i / kv_heads], i % kv_heads, first_tile(following, l));
    }
    end_phase(weir::kAttention);
  }

  void attend(int l, const AttentionItem& item, int kv_head, const Tile& after) {
    const int first_token = first_token_of(item);
    const int rows = item.num_queries * group_;
    const Mask mask = mask_of(item, l);
    const bool reads_own_key = (int64_t)item.end_split * kSplitTokens >= mask.last(rows - 1);
    if (first_token < first_chunk_token_ && reads_own_key) write_kv(l, first_token, kv_head);

    for (int t = 0; t < item.num_queries; ++t) {
      const float* q = ws_.qkv + (size_t)(first_token + t) * ws_.qkv_stride + (size_t)kv_head * group_ * dim_;
      for (int g = 0; g < group_; ++g)
        prepare_head(q + (size_t)g * dim_, model_.layers[l].q_norm, shape_.rms_norm_eps, cos_of(first_token + t),
                     sin_of(first_token + t), dim_, padded_dim_, scratch_.q + (size_t)(t * group_ + g) * padded_dim_);
    }

    for (int row = 0; row < rows; ++row) scratch_.merged_maximum[row] = kMinusInfinity;
    __builtin_memset(scratch_.merged_sum, 0, sizeof(float) * rows);
    __builtin_memset(scratch_.merged_out, 0, sizeof(float) * rows * padded_dim_);
    const SequenceKv kv = sequence_kv(l, item.sequence, kv_head);
    const float scale = kLog2E / __builtin_sqrtf((float)dim_);
    for (int split = item.first_split; split < item.end_split; ++split) {
      attend_split(scratch_, kv, rows, mask, split, scale, padded_dim_, after);
      for (int row = 0; row < rows; ++row)
        merge_split(scratch_.merged_out + (size_t)row * padded_dim_, scratch_.merged_maximum + row,
                    scratch_.merged_sum + row, scratch_.out + (size_t)row * padded_dim_, scratch_.maximum[row],
                    sum(load(scratch_.sum + (size_t)row * kLanes)), padded_dim_);
    }
    if (item.partial >= 0 && !merge_partials(item, kv_head)) return;

    for (int row = 0; row < rows; ++row) {
      const float total = scratch_.merged_sum[row];
      const vf inverse = set1(total == 0.0f ? 0.0f : 1.0f / total);
      bf16* out = ws_.attended + (size_t)(first_token + row / group_) * ws_.attended_stride +
                  (size_t)(kv_head * group_ + row % group_) * dim_;
      for (int d = 0; d < dim_; d += kLanes)
        store_bf16_first(out + d, mul(load(scratch_.merged_out + (size_t)row * padded_dim_ + d), inverse), dim_ - d);
    }
  }

  float* partial_of(int partial, int head) const {
    return ws_.partials + ((size_t)partial * shape_.num_heads + head) * (padded_dim_ + kLanes);
  }

  // Leaves the state of this split for the thread that finishes the sequence's last split; that thread, whichever it
  // is, merges all splits in ascending order into the scratch. True for that thread.
  bool merge_partials(const AttentionItem& item, int kv_head) {
    const int splits = ws_.num_splits[item.sequence];
    const int split = item.first_split;
    for (int g = 0; g < group_; ++g) {
      float* to = partial_of(item.partial, kv_head * group_ + g);
      __builtin_memcpy(to, scratch_.merged_out + (size_t)g * padded_dim_, sizeof(float) * padded_dim_);
      to[padded_dim_] = scratch_.merged_maximum[g];
      to[padded_dim_ + 1] = scratch_.merged_sum[g];
    }
    int32_t* done = ws_.splits_done + (size_t)item.sequence * shape_.num_kv_heads + kv_head;
    if (__atomic_add_fetch(done, 1, __ATOMIC_ACQ_REL) != splits) return false;
    *done = 0;  // for the next layer; the barrier at the end of the phase publishes it

    for (int g = 0; g < group_; ++g) {
      float* out = scratch_.merged_out + (size_t)g * padded_dim_;
      scratch_.merged_maximum[g] = kMinusInfinity;
      scratch_.merged_sum[g] = 0.0f;
      __builtin_memset(out, 0, sizeof(float) * padded_dim_);
      for (int s = 0; s < splits; ++s) {
        const float* from = partial_of(item.partial - split + s, kv_head * group_ + g);
        merge_split(out, scratch_.merged_maximum + g, scratch_.merged_sum + g, from, from[padded_dim_],
                    from[padded_dim_ + 1], padded_dim_);
      }
    }
    return true;
  }

  void keep_logit_rows() {
    WorkQueue runs = row_runs(batch_.num_logit_rows);
    for (int run = runs.next(); run >= 0; run = runs.next()) {
      for (int row = run * kRunRows; row < run_end(run, batch_.num_logit_rows); ++row) {
        const size_t from = (size_t)batch_.logit_rows[row];
        __builtin_memcpy(ws_.kept_hidden + (size_t)row * ws_.hidden_stride, ws_.hidden + from * ws_.hidden_stride,
                         sizeof(float) * shape_.hidden_size);
        __builtin_memcpy(ws_.kept_attended + (size_t)row * ws_.attended_stride,
                         ws_.attended + from * ws_.attended_stride, sizeof(bf16) * shape_.num_heads * dim_);
      }
    }
    end_phase(weir::kNorm);
  }

  void lm_head() {
    const int rows = batch_.num_logit_rows;
    if (batch_.logits != nullptr)
      product(normed(rows), model_.lm_head,
              StoreFloat{batch_.logits, (size_t)shape_.vocab_size, shape_.vocab_size, nullptr}, weir::kLmHead);
    if (batch_.greedy_ids == nullptr) return;

    const size_t lanes = (size_t)rows * weir::kPanelCols;
    float* best = ws_.best_logit + thread_ * lanes;
    int32_t* id = ws_.best_id + thread_ * lanes;
    for (size_t i = 0; i < lanes; ++i) best[i] = kMinusInfinity, id[i] = 0;
    product(normed(rows), model_.lm_head, KeepLargest{best, id, shape_.vocab_size}, weir::kLmHead);
    WorkQueue runs = row_runs(rows);
    for (int run = runs.next(); run >= 0; run = runs.next())
      for (int row = run * kRunRows; row < run_end(run, rows); ++row) batch_.greedy_ids[row] = largest_of(row, lanes);
    end_phase(weir::kLmHead);
  }

  // Over all threads and lanes: the largest logit, the lowest id on ties.
  int64_t largest_of(int row, size_t lanes) const {
    float best = kMinusInfinity;
    int32_t id = 0;
    for (int t = 0; t < threads_; ++t) {
      for (int lane = 0; lane < weir::kPanelCols; ++lane) {
        const size_t at = t * lanes + (size_t)row * weir::kPanelCols + lane;
        const float x = ws_.best_logit[at];
        if (x > best || (x == best && ws_.best_id[at] < id)) best = x, id = ws_.best_id[at];
      }
    }
    return id;
  }

  const Model& model_;
  const ModelShape& shape_;
  const StepBatch& batch_;
  Workspace& ws_;
  const int thread_, threads_;
  double* seconds_;
  const int group_, dim_, padded_dim_;
  const int first_chunk_token_;  // tokens before it are alone in their sequence, a decode each
  AttentionScratch scratch_;
  KvAhead kv_ahead_;
  int phase_ = 0;
  double start_ = 0;
};

void run_step(const Model& model, const StepBatch& batch, Workspace& workspace, int thread, int num_threads,
              double* phase_seconds) {
  Step(model, batch, workspace, thread, num_threads, phase_seconds).run();
}

}  // namespace
