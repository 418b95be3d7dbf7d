// Vec: sixteen float32 lanes of AVX-512. Only *_avx512.cc files include it. The unnamed namespace gives every template
// made with Vec internal linkage, so that no code compiled with these flags can be linked into a file compiled without
// them.
#pragma once

// GCC 12 takes the deliberately undefined operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"  // for clang, which does not know all of these
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace trireme::ops::cpu {
namespace {

struct Vec {
  static constexpr int64_t kLanes = 16;
  static constexpr int kRegisters = 32;

  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // Lanes [0, n); the others are zero and their memory is not touched.
  static Vec load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  static Vec load_bf16(const uint16_t* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec load_bf16(const uint16_t* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, first(n), v); }
  void store_bf16(uint16_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow()); }
  void store_bf16(uint16_t* p, int64_t n) const { _mm256_mask_storeu_epi16(p, first(n), narrow()); }

  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  // a * b + c with one rounding.
  friend Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // b where either is NaN.
  friend Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  friend Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  friend Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
  friend Vec nearest(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  friend Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
  // a with the sign of b; a is not negative.
  friend Vec with_sign_of(Vec a, Vec b) { return {_mm512_or_ps(a.v, _mm512_and_ps(b.v, _mm512_set1_ps(-0.0F)))}; }
  // a < b ? x : y.
  friend Vec select_less(Vec a, Vec b, Vec x, Vec y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
  }
  // a * 2^n for integral n.
  friend Vec scale2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  friend Vec round_bf16(Vec a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(bf16_bits(a.v), 16))}; }
  friend float lane0(Vec a) { return _mm512_cvtss_f32(a.v); }
  // All lanes, in one fixed order.
  friend float sum(Vec a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }

  // rows[i][j] <-> rows[j][i].
  static void transpose(Vec (&rows)[kLanes]) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
      a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    // b[4 g + j]: in each quarter q, column 4 q + j of rows 4 g .. 4 g + 3.
    for (int g = 0; g < 16; g += 4) {
      b[g] = _mm512_shuffle_ps(a[g], a[g + 2], 0x44);
      b[g + 1] = _mm512_shuffle_ps(a[g], a[g + 2], 0xee);
      b[g + 2] = _mm512_shuffle_ps(a[g + 1], a[g + 3], 0x44);
      b[g + 3] = _mm512_shuffle_ps(a[g + 1], a[g + 3], 0xee);
    }
    // Now a 4 x 4 transpose of quarters for each j.
    for (int j = 0; j < 4; ++j) {
      const __m512 even01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88),
                   odd01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);
      const __m512 even23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88),
                   odd23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
      rows[j].v = _mm512_shuffle_f32x4(even01, even23, 0x88);
      rows[4 + j].v = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
      rows[8 + j].v = _mm512_shuffle_f32x4(even01, even23, 0xdd);
      rows[12 + j].v = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
  }
  // out[j] lane i = p[4 i + j].
  static void load_interleaved4(const float* p, Vec (&out)[4]) {
    const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
    const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    const __m512 c = _mm512_loadu_ps(p + 32), d = _mm512_loadu_ps(p + 48);
    const __m512 ab01 = _mm512_permutex2var_ps(a, low, b), cd01 = _mm512_permutex2var_ps(c, low, d);
    const __m512 ab23 = _mm512_permutex2var_ps(a, high, b), cd23 = _mm512_permutex2var_ps(c, high, d);
    out[0].v = _mm512_shuffle_f32x4(ab01, cd01, 0x44);
    out[1].v = _mm512_shuffle_f32x4(ab01, cd01, 0xee);
    out[2].v = _mm512_shuffle_f32x4(ab23, cd23, 0x44);
    out[3].v = _mm512_shuffle_f32x4(ab23, cd23, 0xee);
  }

 private:
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1U << static_cast<unsigned>(n)) - 1U); }
  static Vec widen(__m256i halves) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  // The bfloat16 code of every lane: nearest even, NaN quiet.
  static __m512i bf16_bits(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), upper, _mm512_set1_epi32(0x40));
  }
  __m256i narrow() const { return _mm512_cvtepi32_epi16(bf16_bits(v)); }
};

}  // namespace
}  // namespace trireme::ops::cpu
