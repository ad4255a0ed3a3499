// Causal attention of one run of queries over the paged KV cache, for one KV head and the query heads that share it.
//
// Rows are (token, query head of the group). KV is walked in tiles of 64 tokens whose boundaries are absolute
// positions; within a split of 512 tokens the softmax is online (running maximum and sum), and the splits of a row are
// merged in ascending order. Every row goes through the same operations whether it is a decode, whose splits are
// computed by different threads, or sits in a chunk, whose rows share the tiles: tiles and splits that lie outside a
// row's mask leave its state exactly as it was.
//
// Slots that a sequence doesn't own may hold anything, NaN included. Scores of such slots are dropped by lane; their
// values are replaced by zeros before they meet a probability of zero.
#pragma once

#include "rope.h"

namespace {

using weir::kSplitTokens;
using weir::kTileTokens;
using weir::ModelShape;

constexpr int kTileGroups = kTileTokens / kGroupTokens;
constexpr float kMinusInfinity = -__builtin_inff();
#if defined(__AVX512F__)
constexpr int kAttentionRows = 6;  // 6 rows x 4 vectors of accumulators
#else
constexpr int kAttentionRows = 1;
#endif

// The cache of one sequence, one layer and one KV head.
struct SequenceKv {
  bf16* head;  // block 0 of this KV head
  const int32_t* block_table;
  size_t block_elements, group_elements;
  int block_size;

  bf16* group(int64_t token) const {
    const int64_t block = block_table[token / block_size];
    return head + block * block_elements + (size_t)(token % block_size / kGroupTokens) * group_elements;
  }
};

// The four groups of a tile. Groups without a token in [first, last) repeat the nearest one that has.
struct Tile {
  const bf16* k[kTileGroups];
  const bf16* v[kTileGroups];

  Tile(const SequenceKv& kv, int64_t begin, int64_t first, int64_t last) {
    for (int g = 0; g < kTileGroups; ++g) {
      int64_t token = begin + g * kGroupTokens;
      if (token >= last) token = last - 1;
      if (token + kGroupTokens <= first) token = first;
      k[g] = kv.group(token);
      v[g] = k[g] + kv.group_elements / 2;
    }
  }
};

// scores[R][64] = q[R][padded_dim] K^T. Fetches the K of the tile that comes next.
template <int R>
__attribute__((noinline)) void tile_scores(const bf16* q, int padded_dim, const Tile& tile, const Tile& next,
                                           float* scores) {
  const bf16 *k0 = tile.k[0], *k1 = tile.k[1], *k2 = tile.k[2], *k3 = tile.k[3];
  const bf16 *n0 = next.k[0], *n1 = next.k[1], *n2 = next.k[2], *n3 = next.k[3];
  vf acc[R][kTileGroups];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) acc[r][g] = zero();
  for (size_t i = 0; i < (size_t)padded_dim / 2 * 2 * kLanes; i += 2 * kLanes, q += 2) {
    __builtin_prefetch(n0 + i, 0, 2);
    __builtin_prefetch(n1 + i, 0, 2);
    __builtin_prefetch(n2 + i, 0, 2);
    __builtin_prefetch(n3 + i, 0, 2);
    const vp k[kTileGroups] = {load_pairs(k0 + i), load_pairs(k1 + i), load_pairs(k2 + i), load_pairs(k3 + i)};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const vp x = broadcast_pair(q + r * padded_dim);
#pragma GCC unroll 4
      for (int g = 0; g < kTileGroups; ++g) acc[r][g] = dot_pairs(acc[r][g], x, k[g]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) store(scores + r * kTileTokens + g * kLanes, acc[r][g]);
}

// out[R][..] = out * rescale + P V for `C` vectors of dims that start at `dim`. Fetches the V of the next tile.
template <int R, int C>
__attribute__((noinline)) void tile_values(const bf16* p, const float* rescale, const Tile& tile, const Tile& next,
                                           int dim, int padded_dim, float* out) {
  vf acc[R][C];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const vf scale = set1(rescale[r]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = mul(load(out + r * padded_dim + dim + c * kLanes), scale);
  }
  for (int g = 0; g < kTileGroups; ++g) {
    const bf16* v = tile.v[g] + 2 * dim;
    const bf16* ahead = next.v[g] + 2 * dim;
    for (int pair = 0; pair < kGroupTokens / 2; ++pair) {
      vp x[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        x[c] = load_pairs(v + c * 2 * kLanes);
        __builtin_prefetch(ahead + c * 2 * kLanes, 0, 2);
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const vp weight = broadcast_pair(p + r * kTileTokens);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = dot_pairs(acc[r][c], weight, x[c]);
      }
      p += 2;
      v += 2 * padded_dim;
      ahead += 2 * padded_dim;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + r * padded_dim + dim + c * kLanes, acc[r][c]);
}

template <int R>
WEIR_INLINE void tile_values_of_all_dims(const bf16* p, const float* rescale, const Tile& tile, const Tile& next,
                                         int padded_dim, float* out) {
  int dim = 0;
  for (; dim + 4 * kLanes <= padded_dim; dim += 4 * kLanes)
    tile_values<R, 4>(p, rescale, tile, next, dim, padded_dim, out);
  const int rest = (padded_dim - dim) / kLanes;
  if (rest == 3) tile_values<R, 3>(p, rescale, tile, next, dim, padded_dim, out);
  if (rest == 2) tile_values<R, 2>(p, rescale, tile, next, dim, padded_dim, out);
  if (rest == 1) tile_values<R, 1>(p, rescale, tile, next, dim, padded_dim, out);
}

// One thread's memory for an item of up to `rows` rows.
struct AttentionScratch {
  bf16* q;             // [rows, padded_dim]
  float* out;          // [rows, padded_dim], of the split at hand, unscaled
  float *maximum;      // [rows], in units of log2
  float *sum;          // [rows, 16], by lane
  float* merged_out;   // the same over all splits so far
  float *merged_maximum, *merged_sum;  // [rows]
  float* scores;       // [kAttentionRows, 64]
  bf16* p;             // [kAttentionRows, 64]
  bf16* edge;          // two V groups

  static size_t bytes(const ModelShape& s) {
    AttentionScratch scratch;
    return (size_t)(scratch.place(s, nullptr) - (char*)nullptr);
  }
  AttentionScratch(const ModelShape& s, char* memory) { place(s, memory); }

 private:
  AttentionScratch() = default;

  char* place(const ModelShape& s, char* at) {
    const size_t rows = (size_t)weir::queries_per_item(s) * (s.num_heads / s.num_kv_heads);
    const size_t dim = weir::padded_head_dim(s);
    auto take = [&at](size_t bytes) {
      char* here = at;
      at += (bytes + 63) / 64 * 64;
      return here;
    };
    q = (bf16*)take(rows * dim * sizeof(bf16));
    out = (float*)take(rows * dim * sizeof(float));
    maximum = (float*)take(rows * sizeof(float));
    sum = (float*)take(rows * kLanes * sizeof(float));
    merged_out = (float*)take(rows * dim * sizeof(float));
    merged_maximum = (float*)take(rows * sizeof(float));
    merged_sum = (float*)take(rows * sizeof(float));
    scores = (float*)take(kAttentionRows * kTileTokens * sizeof(float));
    p = (bf16*)take(kAttentionRows * kTileTokens * sizeof(bf16));
    edge = (bf16*)take(2 * kGroupTokens * dim * sizeof(bf16));
    return at;
  }
};

// Which KV positions the rows see.
struct Mask {
  int64_t first_position;  // of the first query token
  int64_t window;          // 0: no limit
  int group;               // rows of one token

  int64_t last(int row) const { return first_position + row / group + 1; }  // exclusive
  int64_t first(int row) const {
    const int64_t oldest = last(row) - window;
    return window == 0 || oldest < 0 ? 0 : oldest;
  }
};

inline float exp2_of(float x) {
  float lanes[kLanes];
  store(lanes, exp2_nonpositive(set1(x)));
  return lanes[0];
}

// Scores to probabilities for one row of a tile: updates maximum and sum, gives the factor for what was summed before.
WEIR_INLINE float softmax_row(const float* scores, float scale, int64_t first, int64_t last, bool masked,
                              float* maximum, float* sum_by_lane, bf16* p) {
  vf x[kTileGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kTileGroups; ++g) x[g] = load(scores + g * kLanes);
  if (masked) {
    for (int g = 0; g < kTileGroups; ++g) {
      const int64_t from = first - g * kLanes, to = last - g * kLanes;
      x[g] = keep_lanes(x[g], from < 0 ? 0 : (from > kLanes ? kLanes : (int)from),
                        to < 0 ? 0 : (to > kLanes ? kLanes : (int)to), set1(kMinusInfinity));
    }
  }
  const float before = *maximum;
  const float highest = largest(max(max(x[0], x[1]), max(x[2], x[3]))) * scale;
  const float now = highest > before ? highest : before;
  // A row that has seen nothing yet has no maximum; the stand-in is used in the exponents only and never stored.
  const vf reference = set1(now == kMinusInfinity ? 0.0f : now);
#pragma GCC unroll 4
  for (int g = 0; g < kTileGroups; ++g) {
    x[g] = exp2_nonpositive(fms(x[g], set1(scale), reference));
    store_bf16(p + g * kLanes, x[g]);
  }
  const float rescale = now == before ? 1.0f : exp2_of(before - now);
  store(sum_by_lane, fma(load(sum_by_lane), set1(rescale), add(add(x[0], x[1]), add(x[2], x[3]))));
  *maximum = now;
  return rescale;
}

// Merge the state of one more split into a row.
inline void merge_split(float* merged_out, float* merged_maximum, float* merged_sum, const float* out, float maximum,
                        float split_sum, int padded_dim) {
  if (maximum == kMinusInfinity) return;
  const float now = maximum > *merged_maximum ? maximum : *merged_maximum;
  const float old_factor = *merged_maximum == now ? 1.0f : exp2_of(*merged_maximum - now);
  const float new_factor = maximum == now ? 1.0f : exp2_of(maximum - now);
  for (int d = 0; d < padded_dim; d += kLanes)
    store(merged_out + d, fma(load(out + d), set1(new_factor), mul(load(merged_out + d), set1(old_factor))));
  *merged_sum = __builtin_fmaf(split_sum, new_factor, *merged_sum * old_factor);
  *merged_maximum = now;
}

// Replaces the groups at the ends of [first, last) by copies whose other tokens are zero.
class CleanEdges {
 public:
  CleanEdges(bf16* memory, int padded_dim) : memory_(memory), dim_(padded_dim) {}

  void apply(Tile& tile, int64_t begin, int64_t first, int64_t last) {
    bf16* free = memory_;
    for (int g = 0; g < kTileGroups; ++g) {
      const int64_t group_begin = begin + g * kGroupTokens;
      const bool outside = group_begin >= last || group_begin + kGroupTokens <= first;
      if (outside) continue;  // repeats a group that is made clean below, or was
      if (group_begin >= first && group_begin + kGroupTokens <= last) continue;
      copy(tile.v[g], free, first - group_begin, last - group_begin);
      const bf16* dirty = tile.v[g];
      for (int other = 0; other < kTileGroups; ++other)
        if (tile.v[other] == dirty) tile.v[other] = free;
      free += (size_t)kGroupTokens * dim_;
    }
  }

 private:
  void copy(const bf16* from, bf16* to, int64_t first, int64_t last) const {
    for (int pair = 0; pair < kGroupTokens / 2; ++pair) {
      const bool even = 2 * pair >= first && 2 * pair < last, odd = 2 * pair + 1 >= first && 2 * pair + 1 < last;
      const uint32_t keep = (even ? 0x0000ffffu : 0u) | (odd ? 0xffff0000u : 0u);
      for (int d = 0; d < dim_; ++d) {
        uint32_t x;
        __builtin_memcpy(&x, from + ((size_t)pair * dim_ + d) * 2, 4);
        x &= keep;
        __builtin_memcpy(to + ((size_t)pair * dim_ + d) * 2, &x, 4);
      }
    }
  }

  bf16* memory_;
  int dim_;
};

template <int R>
void attend_rows(const AttentionScratch& s, int row, const Tile& tile, const Tile& next, int64_t begin,
                 const Mask& mask, float scale, int padded_dim) {
  float rescale[R];
  tile_scores<R>(s.q + (size_t)row * padded_dim, padded_dim, tile, next, s.scores);
  for (int r = 0; r < R; ++r) {
    const int64_t first = mask.first(row + r), last = mask.last(row + r);
    const bool masked = first > begin || last < begin + kTileTokens;
    rescale[r] = softmax_row(s.scores + r * kTileTokens, scale, first - begin, last - begin, masked,
                             s.maximum + row + r, s.sum + (size_t)(row + r) * kLanes, s.p + r * kTileTokens);
  }
  tile_values_of_all_dims<R>(s.p, rescale, tile, next, padded_dim, s.out + (size_t)row * padded_dim);
}

inline void attend_rows_of(int count, const AttentionScratch& s, int row, const Tile& tile, const Tile& next,
                           int64_t begin, const Mask& mask, float scale, int padded_dim) {
  switch (count) {
    case 1: return attend_rows<1>(s, row, tile, next, begin, mask, scale, padded_dim);
#if defined(__AVX512F__)
    case 2: return attend_rows<2>(s, row, tile, next, begin, mask, scale, padded_dim);
    case 3: return attend_rows<3>(s, row, tile, next, begin, mask, scale, padded_dim);
    case 4: return attend_rows<4>(s, row, tile, next, begin, mask, scale, padded_dim);
    case 5: return attend_rows<5>(s, row, tile, next, begin, mask, scale, padded_dim);
    case 6: return attend_rows<6>(s, row, tile, next, begin, mask, scale, padded_dim);
#endif
  }
}

// One split of `rows` rows: fills s.out, s.maximum and s.sum.
inline void attend_split(const AttentionScratch& s, const SequenceKv& kv, int rows, const Mask& mask, int64_t split,
                         float scale, int padded_dim, const Tile& after) {
  for (int i = 0; i < rows; ++i) s.maximum[i] = kMinusInfinity;
  __builtin_memset(s.sum, 0, sizeof(float) * rows * kLanes);
  __builtin_memset(s.out, 0, sizeof(float) * rows * padded_dim);

  // Tokens that some row sees. All of them are this sequence's own and hold finite numbers; no others are read.
  const int64_t first = mask.first(0), last = mask.last(rows - 1);
  int64_t begin = split * kSplitTokens, end = begin + kSplitTokens;
  if (end > last) end = last;
  while (begin + kTileTokens <= first) begin += kTileTokens;

  CleanEdges edges(s.edge, padded_dim);
  for (; begin < end; begin += kTileTokens) {
    Tile tile(kv, begin, first, last);
    const bool more = begin + kTileTokens < end;
    const Tile next = more ? Tile(kv, begin + kTileTokens, first, last) : after;
    if (begin < first || begin + kTileTokens > last) edges.apply(tile, begin, first, last);
    for (int row = 0; row < rows; row += kAttentionRows) {
      const int count = rows - row < kAttentionRows ? rows - row : kAttentionRows;
      const bool unseen = mask.last(row + count - 1) <= begin || mask.first(row) >= begin + kTileTokens;
      if (!unseen) attend_rows_of(count, s, row, tile, next, begin, mask, scale, padded_dim);
    }
  }
}

}  // namespace
