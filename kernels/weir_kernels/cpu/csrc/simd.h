// The vector operations that every kernel is written in, once for each instruction set.
//
// A `vf` is 16 float32 lanes and a `vp` is 16 pairs of bf16 (one pair in each 32-bit lane), whatever the width of the
// machine's registers: one zmm register with AVX-512, two ymm registers with AVX2. `dot_pairs` is the operation that
// the layouts are made for: each lane adds the products of its two bf16 pairs to a float32 accumulator.
//
// Each isa_*.cpp compiles this header with its own -m flags. Everything is in an unnamed namespace so that the linker
// can never take a function compiled for one instruction set for another.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "model.h"

#define WEIR_INLINE inline __attribute__((always_inline))

namespace {

using weir::bf16;
using weir::kLanes;

#if defined(__AVX512F__)
#include "simd_avx512.h"
#else
#include "simd_avx2.h"
#endif

// 2^x for x of at most about 0, to 2e-7 relative; -inf gives 0 and NaN gives NaN. Split x = n + f with |f| <= 1/2, then a
// polynomial for 2^f: the one of degree 5 with the smallest largest relative error among those that give exactly 1 for
// f = 0.
WEIR_INLINE vf exp2_nonpositive(vf x) {
  x = max(set1(-160.0f), x);  // x second: the maximum with a NaN is its second operand
  const vf n = round_nearest(x);
  const vf f = sub(x, n);
  vf p = set1(1.3264727532681692e-3f);
  p = fma(p, f, set1(9.671512709487599e-3f));
  p = fma(p, f, set1(5.550733742003754e-2f));
  p = fma(p, f, set1(2.4022242083854523e-1f));
  p = fma(p, f, set1(6.931469776002880e-1f));
  p = fma(p, f, set1(1.0f));
  return scale_by_power_of_two(p, n);
}

// x * sigmoid(x). The exponential is taken of -|x| so that it never overflows.
WEIR_INLINE vf silu(vf x) {
  const vf e = exp2_nonpositive(mul(set1(-1.4426950408889634f), absolute(x)));
  const vf numerator = select_negative(x, e, set1(1.0f));
  return div(mul(x, numerator), add(set1(1.0f), e));
}

}  // namespace
