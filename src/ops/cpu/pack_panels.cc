#include "ops/cpu/pack_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "ops/cpu/linear_layout.h"

namespace trireme::ops::cpu {
namespace {

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// One output's codes, as 32-bit words, into column `lane` of a panel: word i goes to codes[i][lane]. `bytes` of the row
// that do not fill a word are followed by zeros.
void scatter_words(const std::byte* row, int64_t bytes, int64_t lane, uint32_t* codes) {
  const int64_t whole = bytes / 4;
  uint32_t* out = codes + lane;
  for (int64_t i = 0; i < whole; ++i) out[i * kPanelOutputs] = load<uint32_t>(row + i * 4);
  if (bytes % 4 != 0) {
    uint32_t last = 0;
    std::memcpy(&last, row + whole * 4, static_cast<size_t>(bytes % 4));
    out[whole * kPanelOutputs] = last;
  }
}

// The same for fp8: the two halves of a word go to the two halves of the group.
void scatter_halves(const std::byte* row, int64_t bytes, int64_t lane, uint16_t* codes) {
  const int64_t whole = bytes / 4;
  uint16_t* out = codes + lane;
  for (int64_t i = 0; i < whole; ++i) {
    const auto word = load<uint32_t>(row + i * 4);
    out[i * 2 * kPanelOutputs] = static_cast<uint16_t>(word);
    out[(i * 2 + 1) * kPanelOutputs] = static_cast<uint16_t>(word >> 16);
  }
  if (bytes % 4 != 0) {
    uint32_t last = 0;
    std::memcpy(&last, row + whole * 4, static_cast<size_t>(bytes % 4));
    out[whole * 2 * kPanelOutputs] = static_cast<uint16_t>(last);
    out[(whole * 2 + 1) * kPanelOutputs] = static_cast<uint16_t>(last >> 16);
  }
}

void scatter_f16(const std::byte* row, int64_t count, int64_t lane, uint32_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i * kPanelOutputs + lane] = std::bit_cast<uint32_t>(f16_to_float(load<uint16_t>(row + i * 2)));
  }
}

bool has_nan_code(const std::byte* codes, int64_t count) {
  unsigned found = 0;
  for (int64_t i = 0; i < count; ++i) found |= static_cast<unsigned>((static_cast<uint8_t>(codes[i]) & 0x7fU) == 0x7fU);
  return found != 0;
}

// The lanes of a panel's scales for one row of an fp8 matrix.
void scatter_fp8_scales(const WeightView& w, int64_t row, int64_t lane, float* scales) {
  const int64_t blocks = (w.cols + kFp8Block - 1) / kFp8Block;
  const std::byte* codes = w.data.data() + row * w.cols;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto scale = load<float>(w.scales.data() + ((row + w.row_phase) / kFp8Block * blocks + b) * 4);
    const int64_t count = std::min(kFp8Block, w.cols - b * kFp8Block);
    scales[b * kPanelOutputs + lane] =
        has_nan_code(codes + b * kFp8Block, count) ? std::numeric_limits<float>::quiet_NaN() : scale * 256.0F;
  }
}

int64_t row_bytes(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::f32:
      return w.cols * 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return w.cols * 2;
    case WeightFormat::fp8_block:
      return w.cols;
    case WeightFormat::mxfp4:
      return w.cols / 2;
  }
  return 0;
}

// Bytes [begin, begin + count) of one row's codes into lane `lane` of its panel; begin is a multiple of 4.
void pack_codes(WeightFormat format, const std::byte* row, int64_t begin, int64_t count, int64_t lane,
                std::byte* panel) {
  auto* groups = reinterpret_cast<uint32_t*>(panel + begin / 4 * kGroupBytes);
  if (format == WeightFormat::f16) {
    scatter_f16(row + begin, count / 2, lane, groups + begin / 4 * kPanelOutputs);
  } else if (format == WeightFormat::fp8_block) {
    scatter_halves(row + begin, count, lane, reinterpret_cast<uint16_t*>(groups));
  } else {
    scatter_words(row + begin, count, lane, groups);
  }
}

// The scales of one row into lane `lane` of its panel.
void pack_scales(const WeightView& w, int64_t row, int64_t lane, std::byte* scales) {
  if (w.format == WeightFormat::fp8_block) scatter_fp8_scales(w, row, lane, reinterpret_cast<float*>(scales));
  if (w.format != WeightFormat::mxfp4) return;
  const int64_t blocks = w.cols / kMxBlock;
  const std::byte* from = w.scales.data() + row * blocks;
  for (int64_t b = 0; b < blocks; ++b) scales[b * kPanelOutputs + lane] = from[b];
}

}  // namespace

void pack_panels(const WeightView& w, int64_t panel_begin, int64_t panel_end, std::byte* panels) {
  const PanelLayout layout = panel_layout(w.format, w.rows, w.cols);
  const int64_t bytes = row_bytes(w);
  constexpr int64_t kPiece = 1024;  // of each row: what the 16 rows fill stays in the first-level cache
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    std::byte* panel = panels + p * layout.panel_bytes;
    const int64_t first = p * kPanelOutputs;
    const int64_t lanes = std::min(kPanelOutputs, w.rows - first);
    if (lanes < kPanelOutputs) std::memset(panel, 0, static_cast<size_t>(layout.panel_bytes));
    for (int64_t begin = 0; begin < bytes; begin += kPiece) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const std::byte* row = w.data.data() + (first + lane) * bytes;
        pack_codes(w.format, row, begin, std::min(kPiece, bytes - begin), lane, panel);
      }
    }
    for (int64_t lane = 0; lane < lanes; ++lane) pack_scales(w, first + lane, lane, panel + layout.codes_bytes);
  }
}

}  // namespace trireme::ops::cpu
