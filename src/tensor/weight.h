// A weight matrix as a checkpoint stores it: the door between checkpoint/ (who reads it) and ops/ (who packs it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/numeric.h"

namespace trireme {

enum class WeightFormat : uint8_t {
  f32,
  f16,
  bf16,
  fp8_block,  // E4M3 codes [rows, cols] and F32 scales [ceil(rows/128), ceil(cols/128)]; value = code * scale
  mxfp4,  // E2M1 nibbles [rows, cols/2], element 2j low; E8M0 scales [rows, cols/32]; value = code * 2^(scale - 127)
};

inline constexpr int64_t kFp8Block = 128;
inline constexpr int64_t kMxBlock = 32;

constexpr std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::f16:
      return "f16";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::fp8_block:
      return "fp8_block";
    case WeightFormat::mxfp4:
      return "mxfp4";
  }
  return "?";
}

// [rows, cols] = [out, in], row-major, not owned; y = W x. The bytes may be unaligned (they point into a mapped file).
struct WeightView {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> data;
  std::span<const std::byte> scales;  // empty but for fp8_block and mxfp4
};

// One element, exactly as float32 (fp8_block: one rounded product). Slow: this is the definition that faster code is
// tested against.
float weight_at(const WeightView& w, int64_t row, int64_t col);

// The whole matrix widened to float32, rows * cols values, row-major. `out` must hold them.
void widen(const WeightView& w, std::span<float> out);

// Rows [row_begin, row_begin + count) widened to float32; `out` must hold count * cols values.
void widen_rows(const WeightView& w, int64_t row_begin, int64_t count, std::span<float> out);

// Bytes that the stored form of a matrix takes, scales included.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols);

// What is wrong with the codes of a quantised matrix, as words for a message that say where, or nothing: an E8M0 scale
// of 255 (NaN); an FP8 scale that is negative, infinite or NaN; an FP8 code that is NaN. Reads all of it; plain formats
// always pass.
std::optional<std::string> find_bad_code(const WeightView& w);

}  // namespace trireme
