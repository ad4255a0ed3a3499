// What a thread brings into the cache while it multiplies. A product of more than a few rows leaves most of the memory's
// bandwidth unused, and the attention that follows needs all of it: so the keys and values of the decodes come in under
// the products before it, into the last-level cache.
#pragma once

#include "model.h"

namespace {

// Cache lines one after the other, to be fetched by one tile of a product: `lines` in each of its steps.
struct Fetch {
  const char* from;
  int lines;
};

// The KV blocks of the decodes that this thread fetches in a layer: every num_threads-th block, in the order in which
// attention will take them.
class KvAhead {
 public:
  KvAhead(const weir::Model& model, const weir::StepBatch& batch, const weir::Workspace& workspace, int thread,
          int num_threads)
      : model_(model),
        batch_(batch),
        sequences_(workspace.num_decodes),
        thread_(thread),
        threads_(num_threads),
        block_elements_(weir::kv_block_elements(model.shape, batch.block_size)),
        block_lines_((int)(block_elements_ * sizeof(weir::bf16) / 64)),
        sequence_(sequences_) {}

  // From now on the blocks of `layer`.
  void begin_layer(int layer) {
    layer_ = layer;
    sequence_ = -1;
    block_ = end_ = 0;
    skip_ = thread_;
    lines_left_ = 0;
    budget_ = sequences_ == 0 ? 0 : (int64_t)(model_.fetch_bytes / 64 / threads_);
  }

  // No more blocks: the keys and values that were not fetched have been read.
  void end() {
    lines_left_ = 0;
    budget_ = 0;
  }

  // Whether `take` may give any.
  bool has_more(int steps) const { return steps <= block_lines_ && (lines_left_ >= steps || budget_ >= block_lines_); }

  // Lines for a tile of `steps` steps, at most 4 a step; none when nothing is left that fills it.
  Fetch take(int steps) {
    if (steps > block_lines_) return {nullptr, 0};
    while (lines_left_ < steps)
      if (!next_block()) return {nullptr, 0};
    const int lines = lines_left_ >= 4 * steps ? 4 : lines_left_ >= 2 * steps ? 2 : 1;
    const Fetch fetch{at_, lines};
    at_ += (size_t)64 * lines * steps;
    lines_left_ -= lines * steps;
    return fetch;
  }

 private:
  bool next_block() {
    if (budget_ < block_lines_) return false;
    block_ += skip_;
    while (block_ >= end_) {
      if (sequence_ + 1 >= sequences_) return budget_ = 0, false;  // that was the last
      skip_ = block_ - end_;
      ++sequence_;
      const int tokens = batch_.seq_lens[sequence_], window = model_.layers[layer_].sliding_window;
      block_ = (window > 0 && tokens > window ? tokens - window : 0) / batch_.block_size + skip_;
      end_ = (tokens + batch_.block_size - 1) / batch_.block_size;
    }
    skip_ = threads_;
    const int64_t id = batch_.block_tables[(size_t)sequence_ * batch_.max_blocks + block_];
    at_ = (const char*)(batch_.kv + ((size_t)layer_ * batch_.num_blocks + id) * block_elements_);
    lines_left_ = block_lines_;
    budget_ -= block_lines_;
    return true;
  }

  const weir::Model& model_;
  const weir::StepBatch& batch_;
  const int sequences_, thread_, threads_;
  const size_t block_elements_;
  const int block_lines_;
  int layer_ = 0, sequence_, block_ = 0, end_ = 0, skip_ = 0, lines_left_ = 0;
  int64_t budget_ = 0;
  const char* at_ = nullptr;
};

}  // namespace
