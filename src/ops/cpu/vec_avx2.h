// Vec: eight float32 lanes of AVX2 and FMA. Only *_avx2.cc files include it; see vec_avx512.h on the unnamed namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace trireme::ops::cpu {
namespace {

struct Vec {
  static constexpr int64_t kLanes = 8;
  static constexpr int kRegisters = 16;

  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec set(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  // Lanes [0, n); the others are zero and their memory is not touched.
  static Vec load(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first(n))}; }
  static Vec load_bf16(const uint16_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load_bf16(const uint16_t* p, int64_t n) {
    alignas(16) uint16_t halves[8] = {};
    for (int64_t i = 0; i < n; ++i) halves[i] = p[i];
    return load_bf16(halves);
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(float* p, int64_t n) const { _mm256_maskstore_ps(p, first(n), v); }
  void store_bf16(uint16_t* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow()); }
  void store_bf16(uint16_t* p, int64_t n) const {
    alignas(16) uint16_t halves[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(halves), narrow());
    for (int64_t i = 0; i < n; ++i) p[i] = halves[i];
  }

  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  // a * b + c with one rounding.
  friend Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  // b where either is NaN.
  friend Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  friend Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
  friend Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
  friend Vec nearest(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  friend Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
  // a with the sign of b; a is not negative.
  friend Vec with_sign_of(Vec a, Vec b) { return {_mm256_or_ps(a.v, _mm256_and_ps(b.v, _mm256_set1_ps(-0.0F)))}; }
  // a < b ? x : y.
  friend Vec select_less(Vec a, Vec b, Vec x, Vec y) {
    return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
  }
  // a * 2^n for integral n of [-252, 254], in two factors since 2^n itself may be out of range.
  friend Vec scale2(Vec a, Vec n) {
    const __m256i whole = _mm256_cvtps_epi32(n.v);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return a * power2(half) * power2(_mm256_sub_epi32(whole, half));
  }
  friend Vec round_bf16(Vec a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(a.v), 16))}; }
  friend float lane0(Vec a) { return _mm_cvtss_f32(_mm256_castps256_ps128(a.v)); }
  // All lanes, in one fixed order.
  friend float sum(Vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }

  // rows[i][j] <-> rows[j][i].
  static void transpose(Vec (&rows)[kLanes]) {
    __m256 b[8];
    // b[4 g + j]: in each half h, column 4 h + j of rows 4 g .. 4 g + 3.
    for (int g = 0; g < 8; g += 4) transpose4(rows[g].v, rows[g + 1].v, rows[g + 2].v, rows[g + 3].v, b + g);
    for (int j = 0; j < 4; ++j) {
      rows[j].v = _mm256_permute2f128_ps(b[j], b[4 + j], 0x20);
      rows[4 + j].v = _mm256_permute2f128_ps(b[j], b[4 + j], 0x31);
    }
  }
  // out[j] lane i = p[4 i + j].
  static void load_interleaved4(const float* p, Vec (&out)[4]) {
    const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8), c = _mm256_loadu_ps(p + 16),
                 d = _mm256_loadu_ps(p + 24);
    __m256 columns[4];
    transpose4(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31),
               _mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31), columns);
    for (int j = 0; j < 4; ++j) out[j].v = columns[j];
  }

 private:
  // The 4 x 4 transpose of both halves.
  static void transpose4(__m256 r0, __m256 r1, __m256 r2, __m256 r3, __m256* out) {
    const __m256 low01 = _mm256_unpacklo_ps(r0, r1), high01 = _mm256_unpackhi_ps(r0, r1);
    const __m256 low23 = _mm256_unpacklo_ps(r2, r3), high23 = _mm256_unpackhi_ps(r2, r3);
    out[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    out[1] = _mm256_shuffle_ps(low01, low23, 0xee);
    out[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    out[3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec power2(__m256i n) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23))};
  }
  static Vec widen(__m128i halves) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
  }
  // The bfloat16 code of every lane: nearest even, NaN quiet.
  static __m256i bf16_bits(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
  __m128i narrow() const {
    const __m256i bits = bf16_bits(v);
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  }
};

}  // namespace
}  // namespace trireme::ops::cpu
