// RMS norm of one row: out = x / sqrt(mean(x^2) + eps) * weight.
#pragma once

#include "simd.h"

namespace {

// 1 / sqrt(mean(x^2) + eps), the sum always in the same order.
inline float inverse_rms(const float* x, int n, float eps) {
  vf s0 = zero(), s1 = zero();
  int i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const vf a = load(x + i), b = load(x + i + kLanes);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
  }
  for (; i < n; i += kLanes) {
    const vf a = load_first(x + i, n - i);
    s0 = fma(a, a, s0);
  }
  return 1.0f / __builtin_sqrtf(sum(add(s0, s1)) / (float)n + eps);
}

inline void rms_norm(const float* x, const float* weight, int n, float eps, bf16* out) {
  const vf scale = set1(inverse_rms(x, n, eps));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(out + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < n) store_bf16_first(out + i, mul(mul(load_first(x + i, n - i), scale), load_first(weight + i, n - i)), n - i);
}

// In place, in float32: the norm of a query or key head.
inline void rms_norm_inplace(float* x, const float* weight, int n, float eps) {
  const vf scale = set1(inverse_rms(x, n, eps));
  for (int i = 0; i < n; i += kLanes)
    store_first(x + i, mul(mul(load_first(x + i, n - i), scale), load_first(weight + i, n - i)), n - i);
}

}  // namespace
