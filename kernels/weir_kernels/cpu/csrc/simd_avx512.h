// AVX-512 (F, BW, VL, DQ); included by simd.h inside its namespace. With AVX512-BF16 `dot_pairs` is one instruction;
// without it a pair is widened to two float32 vectors, which the compiler hoists out of the row loop.

typedef __m512 vf;
typedef __m512i vp;

constexpr int kTileRows = 12;  // 12 x 2 accumulators + 2 weights + broadcasts fill the 32 registers
constexpr int kTileVecs = 2;

WEIR_INLINE __mmask16 first_lanes(int n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u); }

WEIR_INLINE vf zero() { return _mm512_setzero_ps(); }
WEIR_INLINE vf set1(float x) { return _mm512_set1_ps(x); }
WEIR_INLINE vf load(const float* p) { return _mm512_loadu_ps(p); }
WEIR_INLINE vf load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
WEIR_INLINE void store(float* p, vf x) { _mm512_storeu_ps(p, x); }
WEIR_INLINE void store_first(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
WEIR_INLINE vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
WEIR_INLINE vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
WEIR_INLINE vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
WEIR_INLINE vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
WEIR_INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
WEIR_INLINE vf fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }
WEIR_INLINE vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
WEIR_INLINE vf absolute(vf a) { return _mm512_abs_ps(a); }
WEIR_INLINE float sum(vf a) { return _mm512_reduce_add_ps(a); }
WEIR_INLINE float largest(vf a) { return _mm512_reduce_max_ps(a); }
WEIR_INLINE vf round_nearest(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
WEIR_INLINE vf scale_by_power_of_two(vf a, vf n) { return _mm512_scalef_ps(a, n); }
WEIR_INLINE vf select_negative(vf x, vf if_negative, vf otherwise) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), otherwise, if_negative);
}
// Lanes first <= i < last of x, `fill` in the others. A NaN in a lane that is dropped does not survive.
WEIR_INLINE vf keep_lanes(vf x, int first, int last, vf fill) {
  const __mmask16 below = first <= 0 ? 0 : first_lanes(first);
  const __mmask16 upto = last <= 0 ? 0 : first_lanes(last);
  return _mm512_mask_blend_ps((__mmask16)(upto & ~below), fill, x);
}
// Per lane: if x > best, take x and its index.
WEIR_INLINE void keep_larger(float* best, int32_t* index, vf x, int first_index) {
  const __m512i ids = _mm512_add_epi32(_mm512_set1_epi32(first_index),
                                       _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const __mmask16 larger = _mm512_cmp_ps_mask(x, _mm512_loadu_ps(best), _CMP_GT_OQ);
  _mm512_mask_storeu_ps(best, larger, x);
  _mm512_mask_storeu_epi32(index, larger, ids);
}

WEIR_INLINE vp load_pairs(const bf16* p) { return _mm512_loadu_si512(p); }
WEIR_INLINE vp broadcast_pair(const bf16* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm512_set1_epi32((int)pair);
}
WEIR_INLINE vp first_of_pairs(vp x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff)); }
WEIR_INLINE vp second_of_pairs(vp x) { return _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)); }

WEIR_INLINE vf load_bf16(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}

#if defined(__AVX512BF16__)
WEIR_INLINE vf dot_pairs(vf acc, vp a, vp b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
WEIR_INLINE __m256i to_bf16(vf x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
WEIR_INLINE vf low_as_float(vp x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
WEIR_INLINE vf high_as_float(vp x) { return _mm512_castsi512_ps(second_of_pairs(x)); }
WEIR_INLINE vf dot_pairs(vf acc, vp a, vp b) {
  return fma(high_as_float(a), high_as_float(b), fma(low_as_float(a), low_as_float(b), acc));
}
// Round to nearest even; a NaN keeps its top bits and is made quiet.
WEIR_INLINE __m256i to_bf16(vf x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
#endif
WEIR_INLINE void store_bf16(bf16* p, vf x) { _mm256_storeu_si256((__m256i*)p, to_bf16(x)); }
WEIR_INLINE void store_bf16_first(bf16* p, vf x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16(x));
}
// Element `which` (0 or 1) of 16 pairs becomes x; the other elements are not written, other threads may own them.
WEIR_INLINE void store_bf16_in_pairs(bf16* pairs, vf x, int which) {
  const __m512i wide = _mm512_cvtepu16_epi32(to_bf16(x));
  if (which == 0)
    _mm512_mask_storeu_epi16(pairs, 0x55555555u, wide);
  else
    _mm512_mask_storeu_epi16(pairs, 0xaaaaaaaau, _mm512_slli_epi32(wide, 16));
}
