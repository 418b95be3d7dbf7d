// AVX2 kernels of matrix products: the same chains as linear_avx512.cc, 16 outputs in two registers of 8.
#include <immintrin.h>

#include "ops/cpu/linear_tiles.h"

namespace trireme::ops::cpu {
namespace {

struct Floats {
  __m256 low, high;
};
struct Bits {
  __m256i low, high;
};

struct Avx2 {
  using V = Floats;
  using Raw = Bits;

  static constexpr int kHeights[] = {1, 2, 4, 6};
  static constexpr int kMaxHeight = 6;
  // 6 x 1 accumulators are 12 of the 16 registers.
  static constexpr int width(int height) { return height == 1 ? 4 : height == 2 ? 2 : 1; }

  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, V v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static void store_part(float* p, V v, int64_t count) {
    alignas(32) float all[16];
    store(all, v);
    for (int64_t i = 0; i < count; ++i) p[i] = all[i];
  }
  static V broadcast(const float* p) {
    const __m256 v = _mm256_broadcast_ss(p);
    return {v, v};
  }
  static V fma(V a, V b, V c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static V mul(V a, V b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static Raw load_raw(const std::byte* p) { return {load_bits(p), load_bits(p + 32)}; }

  static V round_bf16(V v) { return {round_half(v.low), round_half(v.high)}; }

  static V f32(Raw raw) { return {_mm256_castsi256_ps(raw.low), _mm256_castsi256_ps(raw.high)}; }

  template <int U>
  static V bf16(Raw raw) {
    return {bf16_half<U>(raw.low), bf16_half<U>(raw.high)};
  }

  // A code in the upper byte of a 16-bit lane, shifted right by one with its sign kept, is the binary16 of value *
  // 2^-8.
  template <int U>
  static V fp8(Raw raw) {
    const __m256i codes = U < 2 ? raw.low : raw.high;
    const __m256i high = U % 2 == 0 ? _mm256_slli_epi16(codes, 8) : codes;
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  }

  template <int U>
  static V mx(Raw raw) {
    return {mx_half<U>(raw.low), mx_half<U>(raw.high)};
  }

  static V mx_scale(const std::byte* bytes) { return {mx_scale_half(bytes), mx_scale_half(bytes + 8)}; }

 private:
  static __m256i load_bits(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

  // As float_to_bf16 of base/numeric.h.
  static __m256 round_half(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const __m256 kept = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
    return _mm256_and_ps(kept, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)));
  }

  template <int U>
  static __m256 bf16_half(__m256i raw) {
    if constexpr (U == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(-0x10000)));
  }

  // The low three bits of an index choose the magnitude, the fourth is the sign.
  template <int U>
  static __m256 mx_half(__m256i raw) {
    const __m256 magnitudes = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
    const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, U == 0 ? raw : _mm256_srli_epi32(raw, U * 4));
    const __m256i shifted = U == 7 ? raw : _mm256_slli_epi32(raw, 28 - U * 4);
    const __m256i sign = _mm256_and_si256(shifted, _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
  }

  // E8M0: the byte is the exponent, except that 0 means 2^-127, a denormal, and 255 NaN.
  static __m256 mx_scale_half(const std::byte* bytes) {
    const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    const __m256i scale = _mm256_max_epu32(_mm256_slli_epi32(code, 23), _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(scale, _mm256_set1_epi32(0x7fc00000), nan));
  }
};

}  // namespace

constinit const LinearPath kFloatPathAvx2 = float_path<Avx2>();

}  // namespace trireme::ops::cpu
