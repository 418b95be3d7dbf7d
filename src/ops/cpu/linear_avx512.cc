// AVX-512 kernels of matrix products. Weights are widened to float32 and multiplied with FMA in bf16 precision too:
// where this was measured (Sapphire Rapids and its kin) vdpbf16ps starts every second cycle and FMA twice a cycle, so
// FMA is twice as fast; it also keeps denormal numbers and gives the same bits in both precisions.

#include "ops/cpu/intrinsics.h"
#include "ops/cpu/linear_tiles.h"

namespace trireme::ops::cpu {
namespace {

struct Avx512 {
  using V = __m512;
  using Raw = __m512i;

  static constexpr int kHeights[] = {1, 2, 4, 8, 12};
  static constexpr int kMaxHeight = 12;
  // 12 x 2 accumulators, two weights and a broadcast value fill most of the 32 registers.
  static constexpr int width(int height) { return height <= 4 ? 4 : 2; }

  static V zero() { return _mm512_setzero_ps(); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static void store_part(float* p, V v, int64_t count) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << count) - 1), v);
  }
  static V broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static Raw load_raw(const std::byte* p) { return _mm512_loadu_si512(p); }

  // As float_to_bf16 of base/numeric.h; vcvtneps2bf16 would flush denormals.
  static V round_bf16(V v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_mov_epi32(up, nan, quiet), _mm512_set1_epi32(-0x10000)));
  }

  static V f32(Raw raw) { return _mm512_castsi512_ps(raw); }

  template <int U>
  static V bf16(Raw raw) {
    if constexpr (U == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(-0x10000)));
  }

  // A code in the upper byte of a 16-bit lane, shifted right by one with its sign kept, is the binary16 of value *
  // 2^-8.
  template <int U>
  static V fp8(Raw raw) {
    const __m512i high = U % 2 == 0 ? _mm512_slli_epi16(raw, 8) : raw;
    const __m512i half = _mm512_and_si512(_mm512_srai_epi16(high, 1), _mm512_set1_epi16(static_cast<int16_t>(0xbf80)));
    return _mm512_cvtph_ps(U < 2 ? _mm512_castsi512_si256(half) : _mm512_extracti64x4_epi64(half, 1));
  }

  template <int U>
  static V mx(Raw raw) {
    const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F, -1.0F, -1.5F,
                                         -2.0F, -3.0F, -4.0F, -6.0F);
    // The permutation uses the low four bits of an index only.
    return _mm512_permutexvar_ps(U == 0 ? raw : _mm512_srli_epi32(raw, U * 4), values);
  }

  // Bytes of E8M0 to float32: the byte is the exponent, except that 0 means 2^-127, a denormal, and 255 NaN.
  static V mx_scale(const std::byte* bytes) {
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m512i scale = _mm512_max_epu32(_mm512_slli_epi32(code, 23), _mm512_set1_epi32(0x00400000));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(scale, nan, _mm512_set1_epi32(0x7fc00000)));
  }
};

}  // namespace

constinit const LinearPath kFloatPathAvx512 = float_path<Avx512>();

}  // namespace trireme::ops::cpu
