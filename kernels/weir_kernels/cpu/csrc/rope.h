// From a row of the QKV product to a rotated query, and to a key and a value in the cache.
#pragma once

#include "norm.h"

namespace {

using weir::kGroupTokens;

constexpr int kMaxHeadDim = 512;

// Rotary embedding in halves: (x[i], x[i + d/2]) is turned by the angle of frequency i.
inline void rotate(const float* x, const float* cos, const float* sin, int head_dim, float* out) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i;
    const vf a = load_first(x + i, n), b = load_first(x + half + i, n);
    const vf c = load_first(cos + i, n), s = load_first(sin + i, n);
    store_first(out + i, fms(a, c, mul(b, s)), n);
    store_first(out + half + i, fma(b, c, mul(a, s)), n);
  }
}

// A head of the QKV product, normed if the model norms its heads, rotated, as bf16 padded with zeros.
inline void prepare_head(const float* x, const float* norm_weight, float eps, const float* cos, const float* sin,
                         int head_dim, int padded_dim, bf16* out) {
  alignas(64) float normed[kMaxHeadDim], rotated[kMaxHeadDim];
  if (norm_weight != nullptr) {
    __builtin_memcpy(normed, x, sizeof(float) * head_dim);
    rms_norm_inplace(normed, norm_weight, head_dim, eps);
    x = normed;
  }
  for (int d = padded_dim - kLanes; d < padded_dim; ++d) rotated[d] = 0.0f;
  rotate(x, cos, sin, head_dim, rotated);
  for (int d = 0; d < padded_dim; d += kLanes) store_bf16(out + d, load(rotated + d));
}

// `head` is the prepared key of the token that is `token` within its group.
inline void write_key(const bf16* head, int padded_dim, bf16* k_group, int token) {
  for (int pair = 0; pair < padded_dim / 2; ++pair)
    __builtin_memcpy(k_group + ((size_t)pair * kGroupTokens + token) * 2, head + 2 * pair, 4);
}

inline void write_value(const float* x, int head_dim, int padded_dim, bf16* v_group, int token) {
  bf16* out = v_group + (size_t)(token / 2) * padded_dim * 2;
  for (int d = 0; d < padded_dim; d += kLanes)
    store_bf16_in_pairs(out + 2 * d, load_first(x + d, head_dim - d), token % 2);
}

}  // namespace
