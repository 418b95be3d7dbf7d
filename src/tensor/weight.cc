#include "tensor/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace trireme {
namespace {

template <class T>
T load(std::span<const std::byte> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where the scales of fp8 row `row` begin.
int64_t fp8_scale_row(const WeightView& w, int64_t row) {
  return (row + w.row_phase) / kFp8Block * ceil_div(w.cols, kFp8Block);
}

void widen_fp8_row(const WeightView& w, int64_t row, float* out) {
  static const auto kValues = [] {
    std::array<float, 256> values{};
    for (size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_float(static_cast<uint8_t>(code));
    return values;
  }();
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data.data()) + row * w.cols;
  const int64_t first_scale = fp8_scale_row(w, row);
  for (int64_t begin = 0; begin < w.cols; begin += kFp8Block) {
    const auto scale = load<float>(w.scales, first_scale + begin / kFp8Block);
    for (int64_t c = begin; c < std::min(begin + kFp8Block, w.cols); ++c) out[c] = kValues[codes[c]] * scale;
  }
}

void widen_row(const WeightView& w, int64_t row, float* out) {
  if (w.cols == 0) return;
  const int64_t first = row * w.cols;
  switch (w.format) {
    case WeightFormat::f32:
      std::memcpy(out, w.data.data() + first * 4, static_cast<size_t>(w.cols) * 4);
      return;
    case WeightFormat::f16:
      for (int64_t c = 0; c < w.cols; ++c) out[c] = f16_to_float(load<uint16_t>(w.data, first + c));
      return;
    case WeightFormat::bf16:
      for (int64_t c = 0; c < w.cols; ++c) out[c] = bf16_to_float(load<uint16_t>(w.data, first + c));
      return;
    case WeightFormat::fp8_block:
      widen_fp8_row(w, row, out);
      return;
    case WeightFormat::mxfp4:
      for (int64_t c = 0; c < w.cols; ++c) out[c] = weight_at(w, row, c);
      return;
  }
}

std::optional<std::string> find_bad_fp8(const WeightView& w) {
  const int64_t scale_cols = ceil_div(w.cols, kFp8Block);
  for (int64_t i = 0; i < ceil_div(w.rows + w.row_phase, kFp8Block) * scale_cols; ++i) {
    const auto scale = load<float>(w.scales, i);
    if (!std::isfinite(scale) || scale < 0) {
      return fmt::format("scale [{}, {}] is {}; it must be finite and not negative", i / scale_cols, i % scale_cols,
                         scale);
    }
  }
  const auto is_nan = [](std::byte code) { return (code & std::byte{0x7f}) == std::byte{0x7f}; };
  // First whether there is one at all, without a branch in the loop, since that is the usual pass over the whole
  // tensor.
  uint8_t any = 0;
  for (const std::byte code : w.data) any = static_cast<uint8_t>(any | (is_nan(code) ? 1 : 0));
  if (any == 0) return std::nullopt;
  const int64_t at = std::find_if(w.data.begin(), w.data.end(), is_nan) - w.data.begin();
  return fmt::format("element [{}, {}] is NaN", at / w.cols, at % w.cols);
}

}  // namespace

float weight_at(const WeightView& w, int64_t row, int64_t col) {
  const int64_t i = row * w.cols + col;
  switch (w.format) {
    case WeightFormat::f32:
      return load<float>(w.data, i);
    case WeightFormat::f16:
      return f16_to_float(load<uint16_t>(w.data, i));
    case WeightFormat::bf16:
      return bf16_to_float(load<uint16_t>(w.data, i));
    case WeightFormat::fp8_block:
      return e4m3_to_float(load<uint8_t>(w.data, i)) * load<float>(w.scales, fp8_scale_row(w, row) + col / kFp8Block);
    case WeightFormat::mxfp4: {
      const auto byte = load<uint8_t>(w.data, i / 2);
      const auto code = static_cast<uint8_t>(i % 2 == 0 ? byte & 0xf : byte >> 4);
      return e2m1_to_float(code) * e8m0_to_float(load<uint8_t>(w.scales, i / kMxBlock));
    }
  }
  return 0;
}

void widen(const WeightView& w, std::span<float> out) { widen_rows(w, 0, w.rows, out); }

void widen_rows(const WeightView& w, int64_t row_begin, int64_t count, std::span<float> out) {
  for (int64_t r = 0; r < count; ++r) widen_row(w, row_begin + r, out.data() + r * w.cols);
}

int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  switch (format) {
    case WeightFormat::f32:
      return rows * cols * 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return rows * cols * 2;
    case WeightFormat::fp8_block:
      return rows * cols + ceil_div(rows, kFp8Block) * ceil_div(cols, kFp8Block) * 4;
    case WeightFormat::mxfp4:
      return rows * cols / 2 + rows * (cols / kMxBlock);
  }
  return 0;
}

std::optional<std::string> find_bad_code(const WeightView& w) {
  if (w.format == WeightFormat::fp8_block) return find_bad_fp8(w);
  if (w.format != WeightFormat::mxfp4) return std::nullopt;
  const auto bad = std::find(w.scales.begin(), w.scales.end(), std::byte{255});
  if (bad == w.scales.end()) return std::nullopt;
  const int64_t at = bad - w.scales.begin();
  const int64_t scale_cols = w.cols / kMxBlock;
  return fmt::format("scale [{}, {}] is 255 (NaN); it must be 0 to 254", at / scale_cols, at % scale_cols);
}

}  // namespace trireme
