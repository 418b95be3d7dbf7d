// AMX kernels of matrix products in bf16 precision. Every output element is one chain of TDPBF16PS over steps of 32
// inputs (each step adds its 16 pairs in order, with denormals taken as zero, as the instruction is defined), for one
// row as for many: row tiles are always 16 high, filled up with zero rows.
//
// bf16 and mxfp4 weights enter as bfloat16 (an mxfp4 value is exact there, up to overflow and the denormal range).
// fp8_block codes enter unscaled, one chain per block of 128 inputs, and sum += chain * scale block by block in
// float32.

#include "ops/cpu/intrinsics.h"
#include "ops/cpu/linear_kernels.h"

namespace trireme::ops::cpu {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kStep = 32;         // inputs of one tile step
constexpr int64_t kTileBytes = 1024;  // 16 rows of 64 bytes
constexpr int64_t kWidth = 2;         // panels together

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  _tile_loadconfig(&config);
}

int64_t steps_of(int64_t inputs) { return (inputs + kStep - 1) / kStep; }

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- activations: [tiles][steps][16 rows][32] bfloat16

int64_t tile_rows_bytes(int64_t count, int64_t inputs) {
  return (count + kTileRows - 1) / kTileRows * steps_of(inputs) * kTileBytes;
}

// The upper halves of up to 32 float32; the values are bfloat16's already, so nothing is lost.
void cut_to_bf16(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < kStep; i += 16) {
    const int64_t here = min_of(count - i, 16);
    const __mmask16 mask = here >= 16 ? 0xffff : here <= 0 ? 0 : static_cast<__mmask16>((1U << here) - 1);
    const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, x + (here > 0 ? i : 0)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }
}

void pack_tile_rows(const float* const* rows, int64_t count, int64_t inputs, int64_t tile_begin, int64_t tile_end,
                    void* out) {
  const int64_t steps = steps_of(inputs);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t row = tile * kTileRows + r;
      for (int64_t s = 0; s < steps; ++s) {
        uint16_t* to = static_cast<uint16_t*>(out) + (tile * steps + s) * (kTileBytes / 2) + r * kStep;
        if (row < count) {
          cut_to_bf16(rows[row] + s * kStep, inputs - s * kStep, to);
        } else {
          _mm512_storeu_si512(to, _mm512_setzero_si512());
        }
      }
    }
  }
}

// ---- weights: a panel as steps of [16 pairs][16 outputs][2] bfloat16

// Two vectors of float32 that bfloat16 holds, as pairs.
__m512i pair_up(__m512 even, __m512 odd) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                         _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32(-0x10000)));
}

// Each decoder writes the pairs of whole groups. What fills up the last group is zero codes.
void decode_bf16(const std::byte* codes, int64_t inputs, __m512i* out) {
  for (int64_t k = 0; k < inputs; k += 2) *out++ = _mm512_loadu_si512(codes + k / 2 * kGroupBytes);
}

// Codes times 2^-8, as in linear_avx512.cc; a panel's scales have the 2^8.
__m512 fp8_values(__m512i raw, bool high_byte, bool upper) {
  const __m512i high = high_byte ? raw : _mm512_slli_epi16(raw, 8);
  const __m512i half = _mm512_and_si512(_mm512_srai_epi16(high, 1), _mm512_set1_epi16(static_cast<int16_t>(0xbf80)));
  return _mm512_cvtph_ps(upper ? _mm512_extracti64x4_epi64(half, 1) : _mm512_castsi512_si256(half));
}

void decode_fp8(const std::byte* codes, int64_t inputs, __m512i* out) {
  for (int64_t k = 0; k < inputs; k += 4) {
    const __m512i raw = _mm512_loadu_si512(codes + k / 4 * kGroupBytes);
    *out++ = pair_up(fp8_values(raw, false, false), fp8_values(raw, true, false));
    *out++ = pair_up(fp8_values(raw, false, true), fp8_values(raw, true, true));
  }
}

__m512 mx_scales(const std::byte* bytes) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  const __m512i scale = _mm512_max_epu32(_mm512_slli_epi32(code, 23), _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(scale, nan, _mm512_set1_epi32(0x7fc00000)));
}

void decode_mx(const std::byte* codes, const std::byte* scales, int64_t inputs, __m512i* out) {
  const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F, -1.0F, -1.5F,
                                       -2.0F, -3.0F, -4.0F, -6.0F);
  for (int64_t k = 0; k < inputs; k += 8) {
    const __m512 scale = mx_scales(scales + k / kMxBlock * kPanelOutputs);
    __m512i raw = _mm512_loadu_si512(codes + k / 8 * kGroupBytes);
    for (int pair = 0; pair < 4; ++pair) {
      const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(raw, values), scale);
      const __m512 odd = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(raw, 4), values), scale);
      *out++ = pair_up(even, odd);
      raw = _mm512_srli_epi32(raw, 8);
    }
  }
}

// A panel as tile steps: in place where it has that form already, else decoded into `out`.
const std::byte* tile_panel(const LinearJob& job, int64_t panel, std::byte* out) {
  const std::byte* packed = job.panels + panel * job.layout.panel_bytes;
  if (job.format == WeightFormat::bf16 && job.inputs % kStep == 0) return packed;
  const int64_t steps = steps_of(job.inputs);
  // Decoders write up to the last input's group only; the rest of the last step is zeros.
  for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(out + (steps - 1) * kTileBytes + i * 64, _mm512_setzero_si512());
  auto* pairs = reinterpret_cast<__m512i*>(out);
  switch (job.format) {
    case WeightFormat::bf16:
      decode_bf16(packed, job.inputs, pairs);
      break;
    case WeightFormat::fp8_block:
      decode_fp8(packed, job.inputs, pairs);
      break;
    case WeightFormat::mxfp4:
      decode_mx(packed, packed + job.layout.codes_bytes, job.inputs, pairs);
      break;
    case WeightFormat::f16:
    case WeightFormat::f32:
      break;  // these take the exact path
  }
  return out;
}

int64_t tile_scratch_bytes(const LinearJob& job) { return kWidth * steps_of(job.inputs) * kTileBytes; }

// ---- products: up to 2 row tiles by 2 panels; tiles 0..3 accumulate, 4 and 5 hold rows, 6 and 7 weights

struct Accumulators {
  alignas(64) float sums[2][2][16][16];
};

template <int kTiles, int kPanels>
void zero_tiles() {
  _tile_zero(0);
  if constexpr (kPanels > 1) _tile_zero(1);
  if constexpr (kTiles > 1) _tile_zero(2);
  if constexpr (kTiles > 1 && kPanels > 1) _tile_zero(3);
}

template <int kTiles, int kPanels>
void store_tiles(Accumulators& to) {
  _tile_stored(0, to.sums[0][0], 64);
  if constexpr (kPanels > 1) _tile_stored(1, to.sums[0][1], 64);
  if constexpr (kTiles > 1) _tile_stored(2, to.sums[1][0], 64);
  if constexpr (kTiles > 1 && kPanels > 1) _tile_stored(3, to.sums[1][1], 64);
}

// Adds steps [begin, end) to the accumulating tiles.
template <int kTiles, int kPanels>
void add_steps(const std::byte* const* rows, const std::byte* const* panels, int64_t begin, int64_t end) {
  for (int64_t s = begin; s < end; ++s) {
    _tile_loadd(4, rows[0] + s * kTileBytes, 64);
    _tile_loadd(6, panels[0] + s * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, panels[1] + s * kTileBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTiles > 1) {
      _tile_loadd(5, rows[1] + s * kTileBytes, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// fp8_block: block by block, sums += chain * scale.
template <int kTiles, int kPanels>
void add_blocks(const LinearJob& job, int64_t panel, const std::byte* const* rows, const std::byte* const* panels,
                Accumulators& sums) {
  constexpr int64_t kBlockSteps = kFp8Block / kStep;
  const int64_t steps = steps_of(job.inputs);
  Accumulators chain;
  for (int64_t s = 0; s < steps; s += kBlockSteps) {
    zero_tiles<kTiles, kPanels>();
    add_steps<kTiles, kPanels>(rows, panels, s, min_of(s + kBlockSteps, steps));
    store_tiles<kTiles, kPanels>(chain);
    for (int n = 0; n < kPanels; ++n) {
      const std::byte* scales = job.panels + (panel + n) * job.layout.panel_bytes + job.layout.codes_bytes;
      const __m512 scale = _mm512_loadu_ps(reinterpret_cast<const float*>(scales) + s / kBlockSteps * kPanelOutputs);
      for (int t = 0; t < kTiles; ++t) {
        for (int r = 0; r < 16; ++r) {
          const __m512 before = s == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums.sums[t][n][r]);
          _mm512_store_ps(sums.sums[t][n][r], _mm512_fmadd_ps(_mm512_load_ps(chain.sums[t][n][r]), scale, before));
        }
      }
    }
  }
}

// As float_to_bf16 of base/numeric.h.
__m512 round_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_mov_epi32(up, nan, quiet), _mm512_set1_epi32(-0x10000)));
}

void write_results(const LinearJob& job, int64_t tile, int64_t tiles, int64_t panel, int64_t panels,
                   const Accumulators& sums) {
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t first_row = (tile + t) * kTileRows;
    const int64_t rows = min_of(kTileRows, job.row_count - first_row);
    for (int64_t n = 0; n < panels; ++n) {
      const int64_t first = (panel + n) * kPanelOutputs;
      const int64_t outputs = min_of(kPanelOutputs, job.outputs - first);
      const auto mask = static_cast<__mmask16>((1U << outputs) - 1);
      for (int64_t r = 0; r < rows; ++r) {
        const __m512 value = _mm512_load_ps(sums.sums[t][n][r]);
        _mm512_mask_storeu_ps(job.y + (first_row + r) * job.y_stride + first, mask,
                              job.round ? round_bf16(value) : value);
      }
    }
  }
}

template <int kTiles, int kPanels>
void multiply_block(const LinearJob& job, int64_t tile, int64_t panel, const std::byte* const* panels) {
  const int64_t steps = steps_of(job.inputs);
  const auto* all = static_cast<const std::byte*>(job.rows);
  const std::byte* rows[2] = {all + tile * steps * kTileBytes, all + (tile + kTiles - 1) * steps * kTileBytes};
  Accumulators sums;
  if (job.format == WeightFormat::fp8_block) {
    add_blocks<kTiles, kPanels>(job, panel, rows, panels, sums);
  } else {
    zero_tiles<kTiles, kPanels>();
    add_steps<kTiles, kPanels>(rows, panels, 0, steps);
    store_tiles<kTiles, kPanels>(sums);
  }
  write_results(job, tile, kTiles, panel, kPanels, sums);
}

template <int kPanels>
void multiply_tiles(const LinearJob& job, int64_t tile_begin, int64_t tile_end, int64_t panel,
                    const std::byte* const* panels) {
  int64_t tile = tile_begin;
  for (; tile + 2 <= tile_end; tile += 2) multiply_block<2, kPanels>(job, tile, panel, panels);
  if (tile < tile_end) multiply_block<1, kPanels>(job, tile, panel, panels);
}

void multiply(const LinearJob& job, int64_t tile_begin, int64_t tile_end, int64_t panel_begin, int64_t panel_end,
              std::byte* scratch) {
  if (job.inputs == 0 || tile_begin >= tile_end) return;
  configure_tiles();
  const int64_t panel_scratch = steps_of(job.inputs) * kTileBytes;
  for (int64_t panel = panel_begin; panel < panel_end; panel += kWidth) {
    const bool two = panel + 1 < panel_end;
    const std::byte* panels[2] = {tile_panel(job, panel, scratch), nullptr};
    if (two) panels[1] = tile_panel(job, panel + 1, scratch + panel_scratch);
    if (two) {
      multiply_tiles<2>(job, tile_begin, tile_end, panel, panels);
    } else {
      multiply_tiles<1>(job, tile_begin, tile_end, panel, panels);
    }
  }
  _tile_release();
}

}  // namespace

constinit const LinearPath kTilePathAmx = {kTileRows,          kWidth,  false, tile_rows_bytes, pack_tile_rows,
                                           tile_scratch_bytes, multiply};

}  // namespace trireme::ops::cpu
