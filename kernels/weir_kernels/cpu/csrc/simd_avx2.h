// AVX2 + FMA; included by simd.h inside its namespace. A vf is two ymm registers.

struct vf {
  __m256 lo, hi;
};
struct vp {
  __m256i lo, hi;
};

constexpr int kTileRows = 4;  // 4 x 1 accumulators of two registers leave room for the widened weights
constexpr int kTileVecs = 1;

WEIR_INLINE __m256i lane_ids() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
// All ones in lane i of the half that starts at `base` where first <= base + i < last.
WEIR_INLINE __m256i lane_mask(int base, int first, int last) {
  const __m256i i = _mm256_add_epi32(lane_ids(), _mm256_set1_epi32(base));
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), i),
                             _mm256_cmpgt_epi32(_mm256_set1_epi32(last), i));
}

WEIR_INLINE vf set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
WEIR_INLINE vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
WEIR_INLINE vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
WEIR_INLINE vf load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, lane_mask(0, 0, n)), _mm256_maskload_ps(p + 8, lane_mask(8, 0, n))};
}
WEIR_INLINE void store(float* p, vf x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
WEIR_INLINE void store_first(float* p, vf x, int n) {
  _mm256_maskstore_ps(p, lane_mask(0, 0, n), x.lo);
  _mm256_maskstore_ps(p + 8, lane_mask(8, 0, n), x.hi);
}
WEIR_INLINE vf add(vf a, vf b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
WEIR_INLINE vf sub(vf a, vf b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
WEIR_INLINE vf mul(vf a, vf b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
WEIR_INLINE vf div(vf a, vf b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
WEIR_INLINE vf fma(vf a, vf b, vf c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
WEIR_INLINE vf fms(vf a, vf b, vf c) { return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)}; }
WEIR_INLINE vf max(vf a, vf b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
WEIR_INLINE vf absolute(vf a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
WEIR_INLINE float sum(vf a) {
  const __m256 s = _mm256_add_ps(a.lo, a.hi);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
WEIR_INLINE float largest(vf a) {
  const __m256 s = _mm256_max_ps(a.lo, a.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
WEIR_INLINE vf round_nearest(vf a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
WEIR_INLINE __m256 scale_half(__m256 a, __m256 n) {
  // Two steps, because one power below 2^-126 has no normal float32.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, s1), s2);
}
WEIR_INLINE vf scale_by_power_of_two(vf a, vf n) { return {scale_half(a.lo, n.lo), scale_half(a.hi, n.hi)}; }
WEIR_INLINE vf select_negative(vf x, vf if_negative, vf otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, if_negative.lo, x.lo), _mm256_blendv_ps(otherwise.hi, if_negative.hi, x.hi)};
}
WEIR_INLINE vf keep_lanes(vf x, int first, int last, vf fill) {
  return {_mm256_blendv_ps(fill.lo, x.lo, _mm256_castsi256_ps(lane_mask(0, first, last))),
          _mm256_blendv_ps(fill.hi, x.hi, _mm256_castsi256_ps(lane_mask(8, first, last)))};
}
WEIR_INLINE void keep_larger_half(float* best, int32_t* index, __m256 x, int first_index) {
  const __m256i ids = _mm256_add_epi32(_mm256_set1_epi32(first_index), lane_ids());
  const __m256i larger = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_loadu_ps(best), _CMP_GT_OQ));
  _mm256_maskstore_ps(best, larger, x);
  _mm256_maskstore_epi32(index, larger, ids);
}
WEIR_INLINE void keep_larger(float* best, int32_t* index, vf x, int first_index) {
  keep_larger_half(best, index, x.lo, first_index);
  keep_larger_half(best + 8, index + 8, x.hi, first_index + 8);
}

WEIR_INLINE vp load_pairs(const bf16* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 16))};
}
WEIR_INLINE vp broadcast_pair(const bf16* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, 4);
  const __m256i x = _mm256_set1_epi32((int)pair);
  return {x, x};
}
WEIR_INLINE vp first_of_pairs(vp x) {
  const __m256i m = _mm256_set1_epi32(0xffff);
  return {_mm256_and_si256(x.lo, m), _mm256_and_si256(x.hi, m)};
}
WEIR_INLINE vp second_of_pairs(vp x) {
  const __m256i m = _mm256_set1_epi32((int)0xffff0000u);
  return {_mm256_and_si256(x.lo, m), _mm256_and_si256(x.hi, m)};
}
WEIR_INLINE vf low_as_float(vp x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.hi, 16))};
}
WEIR_INLINE vf high_as_float(vp x) {
  const vp h = second_of_pairs(x);
  return {_mm256_castsi256_ps(h.lo), _mm256_castsi256_ps(h.hi)};
}
WEIR_INLINE vf dot_pairs(vf acc, vp a, vp b) {
  return fma(high_as_float(a), high_as_float(b), fma(low_as_float(a), low_as_float(b), acc));
}
WEIR_INLINE vf load_bf16(const bf16* p) {
  const __m256i x = _mm256_loadu_si256((const __m256i*)p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)), 16))};
}
// Round to nearest even; a NaN keeps its top bits and is made quiet. The result is in the low half of each lane.
WEIR_INLINE __m256i round_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256 y = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  return _mm256_srli_epi32(_mm256_castps_si256(y), 16);
}
WEIR_INLINE __m256i to_bf16(vf x) {
  const __m256i packed = _mm256_packus_epi32(round_half(x.lo), round_half(x.hi));
  return _mm256_permute4x64_epi64(packed, 0xd8);  // packus works within 128-bit halves
}
WEIR_INLINE void store_bf16(bf16* p, vf x) { _mm256_storeu_si256((__m256i*)p, to_bf16(x)); }
WEIR_INLINE void store_bf16_first(bf16* p, vf x, int n) {
  bf16 all[16];
  _mm256_storeu_si256((__m256i*)all, to_bf16(x));
  for (int i = 0; i < n && i < 16; ++i) p[i] = all[i];
}
// Element `which` (0 or 1) of 16 pairs becomes x; the other elements are not written, other threads may own them.
WEIR_INLINE void store_bf16_in_pairs(bf16* pairs, vf x, int which) {
  bf16 all[16];
  store_bf16(all, x);
  for (int i = 0; i < 16; ++i) pairs[2 * i + which] = all[i];
}
