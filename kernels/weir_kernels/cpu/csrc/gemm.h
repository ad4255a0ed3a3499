// The matrix product of bf16 activations with packed weights, and what is done with its result while it is at hand.
//
// Register tile: R rows x 32 outputs, R <= kTileRows. Whatever R, each output is one float32 accumulator that takes
// the input pairs in ascending order: the result of a row doesn't depend on the other rows, on the tile it falls in or
// on the thread that computes it. That is what makes a step batch-invariant.
#pragma once

#include "barrier.h"
#include "fetch.h"
#include "model.h"
#include "simd.h"

namespace {

using weir::kPanelCols;
using weir::kStepInputs;
using weir::PackedMatrix;

constexpr int kStepPairs = kStepInputs / 2;

struct Rows {
  const bf16* data;
  size_t stride;  // elements; the elements from the row's length to the next multiple of 8 are zero
  int count;
};

// c[R][32] = rows of a times a panel. The loop also fetches `Prefetch` cache lines a step, each `Apart` lines from the
// one before, from `ahead` (the next panel, or keys and values) into the cache: the hardware's own prefetchers stop at
// page boundaries.
template <int R, int Prefetch, int Apart = 1>
__attribute__((noinline)) void tile_product(const bf16* a, size_t stride, const bf16* b, int steps, const char* ahead,
                                            float* c) {
  for (int part = 0; part < 2 / kTileVecs; ++part) {
    const bf16* weights = b + part * kTileVecs * 2 * kLanes;
    const bf16* inputs[(R + 2) / 3];  // a pointer for every third row: the two between are reached by an index register
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; ++i) inputs[i] = a + 3 * i * stride;
    vf acc[R][kTileVecs];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kTileVecs; ++v) acc[r][v] = zero();
    for (int s = 0; s < steps; ++s) {
      if (part == 0) {
#pragma GCC unroll 16
        for (int line = 0; line < Prefetch; ++line) __builtin_prefetch(ahead + 64 * Apart * line, 0, 2);
        ahead += 64 * Apart * Prefetch;
      }
#pragma GCC unroll 4
      for (int pair = 0; pair < kStepPairs; ++pair) {
        vp w[kTileVecs];
#pragma GCC unroll 2
        for (int v = 0; v < kTileVecs; ++v) w[v] = load_pairs(weights + pair * 2 * kPanelCols + v * 2 * kLanes);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const vp x = broadcast_pair(inputs[r / 3] + r % 3 * stride + 2 * pair);
#pragma GCC unroll 2
          for (int v = 0; v < kTileVecs; ++v) acc[r][v] = dot_pairs(acc[r][v], x, w[v]);
        }
      }
      weights += kStepPairs * 2 * kPanelCols;
#pragma GCC unroll 4
      for (int i = 0; i < (R + 2) / 3; ++i) {
        inputs[i] += kStepInputs;
        // Hides the pointer's history: gcc would keep an address for each row, and spill most of them.
        asm("" : "+r"(inputs[i]));
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kTileVecs; ++v) store(c + r * kPanelCols + (part * kTileVecs + v) * kLanes, acc[r][v]);
  }
}

typedef void (*TileProduct)(const bf16*, size_t, const bf16*, int, const char*, float*);

template <int Prefetch, int Apart = 1>
WEIR_INLINE TileProduct tile_product_for(int rows) {
  static const TileProduct table[] = {
      nullptr,
      tile_product<1, Prefetch, Apart>,
      tile_product<2, Prefetch, Apart>,
      tile_product<3, Prefetch, Apart>,
      tile_product<4, Prefetch, Apart>,
#if defined(__AVX512F__)
      tile_product<5, Prefetch, Apart>,
      tile_product<6, Prefetch, Apart>,
      tile_product<7, Prefetch, Apart>,
      tile_product<8, Prefetch, Apart>,
      tile_product<9, Prefetch, Apart>,
      tile_product<10, Prefetch, Apart>,
      tile_product<11, Prefetch, Apart>,
      tile_product<12, Prefetch, Apart>,
#endif
  };
  return table[rows];
}

// For a lone tile of so few rows that memory alone is the limit. Fetching every line would keep the core's few miss
// buffers full, and the panel at hand waiting; so one line of four, for the hardware to fetch the three behind it.
constexpr int kFewRows = 4;
constexpr int kStepLines = kStepInputs * kPanelCols * (int)sizeof(bf16) / 64;

// The smallest number of lines that a kernel fetches in a step and that is not below `wanted`.
inline int lines_a_step(int wanted) { return wanted <= 2 ? wanted : wanted <= 4 ? 4 : 8; }

WEIR_INLINE TileProduct pick_tile_product(int rows, int lines) {
  switch (lines) {
    case 0: return tile_product_for<0>(rows);
    case 1: return tile_product_for<1>(rows);
    case 2: return tile_product_for<2>(rows);
    case 4: return tile_product_for<4>(rows);
    default: return tile_product_for<8>(rows);
  }
}

// Rows are cut into blocks that stay in the L2 cache while all panels pass, and a block into tiles of nearly equal
// height: 13 rows are 7 + 6, because a tile of 1 row would cost as much time as one of 6.
struct RowBlocks {
  static constexpr int kRowsApart = 64;
  int rows, num_blocks;

  RowBlocks(int num_rows, size_t row_bytes, int num_threads) : rows(num_rows) {
    constexpr size_t kBudgetBytes = 320 << 10;
    int limit = (int)(kBudgetBytes / row_bytes) / kTileRows * kTileRows;
    limit = limit < 4 * kTileRows ? 4 * kTileRows : limit;
    num_blocks = (num_rows + limit - 1) / limit;
    // With many rows each thread takes rows of its own, which the phases before left in its cache; with few it takes
    // panels, so that weights are read from memory once.
    if (num_rows >= kRowsApart * num_threads) num_blocks = (num_blocks + num_threads - 1) / num_threads * num_threads;
  }
  // The first blocks get whole tiles more than the last.
  int begin(int block) const {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    const int row = (int)((int64_t)tiles * block / num_blocks) * kTileRows;
    return row < rows ? row : rows;
  }
};

// The panel with which a thread begins the product of these rows.
inline const bf16* first_panel(const Rows& x, const PackedMatrix& w, int thread, int num_threads) {
  const RowBlocks blocks(x.count, x.stride * sizeof(bf16), num_threads);
  const int panels = num_panels(w);
  return panel(w, WorkQueue::begin_of(thread, blocks.num_blocks * panels, num_threads) % panels);
}

// All of x W^T, called by every thread of the team. `finish(row, panel, values)` gets each row's 32 results of a panel.
// after: what the thread reads first in the product that follows, null if none follows at once. kv: what the tiles
// fetch that have no panel to fetch.
template <class Finish>
void multiply(const Rows& x, const PackedMatrix& w, weir::PhaseCounter* counters, int thread, int num_threads,
              const Finish& finish, const char* after, KvAhead& kv) {
  const int panels = num_panels(w), steps = num_steps(w);
  const RowBlocks blocks(x.count, x.stride * sizeof(bf16), num_threads);
  const int panel_lines = (int)(panel_elements(w) * sizeof(bf16) / 64);
  alignas(64) float c[kTileRows * kPanelCols];

  WorkQueue queue(counters, blocks.num_blocks * panels, thread, num_threads, Sharing::apart);
  for (int item = queue.next(); item >= 0; item = queue.next()) {
    const int block = item / panels, column = item % panels;
    const int begin = blocks.begin(block), rows = blocks.begin(block + 1) - begin;
    const int num_tiles = (rows + kTileRows - 1) / kTileRows;
    const bf16* weights = panel(w, column);

    // Spread the fetch of the next panel over the tiles of this one, or over half of them while there are keys and
    // values for the others.
    const int following = queue.peek();
    const char* ahead = following >= 0 ? (const char*)panel(w, following % panels) : after;
    const int total = steps * (kv.has_more(steps) ? (num_tiles + 1) / 2 : num_tiles);
    const int wanted = (panel_lines + total - 1) / total;
    int lines_left = ahead == nullptr ? 0 : panel_lines;

    for (int tile = 0, row = begin; tile < num_tiles; ++tile) {
      const int height = rows / num_tiles + (tile < rows % num_tiles ? 1 : 0);
      const bool few = lines_left > 0 && num_tiles == 1 && height <= kFewRows;
      const Fetch fetch = lines_left > 0 ? Fetch{ahead, lines_a_step(wanted)} : kv.take(steps);
      if (lines_left > 0) {
        ahead += (size_t)64 * fetch.lines * steps;
        lines_left -= fetch.lines * steps;
      }
      const TileProduct product =
          few ? tile_product_for<kStepLines / 4, 4>(height) : pick_tile_product(height, fetch.lines);
      product(x.data + (size_t)row * x.stride, x.stride, weights, steps, fetch.from, c);
      for (int r = 0; r < height; ++r) finish(row + r, column, c + r * kPanelCols);
      row += height;
    }
  }
}

}  // namespace
