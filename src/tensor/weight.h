// A weight matrix as a checkpoint stores it: the door between checkpoint/ (who reads it) and ops/ (who packs it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
// A view of some rows of an fp8_block matrix may begin inside a block: its row r has scale row (r + row_phase) / 128,
// and `scales` has ceil((rows + row_phase) / 128) rows. Other formats ignore row_phase.
struct WeightView {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> data;
  std::span<const std::byte> scales;  // empty but for fp8_block and mxfp4
  int64_t row_phase = 0;              // of [0, 128)
};

// One element, exactly as float32 (fp8_block: one rounded product). Slow: this is the definition that faster code is
// tested against.
float weight_at(const WeightView& w, int64_t row, int64_t col);

// The whole matrix widened to float32, rows * cols values, row-major. `out` must hold them.
void widen(const WeightView& w, std::span<float> out);

// Rows [row_begin, row_begin + count) widened to float32; `out` must hold count * cols values.
void widen_rows(const WeightView& w, int64_t row_begin, int64_t count, std::span<float> out);

// Rows [begin, begin + count) of `w` in the same format, not copied. Throws Failure if they are not all rows of w.
WeightView rows_of(const WeightView& w, int64_t begin, int64_t count);

// A matrix that owns the bytes its view shows.
struct OwnedWeight {
  OwnedWeight() = default;
  OwnedWeight(OwnedWeight&&) = default;
  OwnedWeight& operator=(OwnedWeight&&) = default;
  OwnedWeight(const OwnedWeight&) = delete;  // the copy's view would show the original's bytes
  OwnedWeight& operator=(const OwnedWeight&) = delete;

  WeightView view;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
};

// The format of columns [begin, begin + count) cut from a matrix of `cols` columns: its own where a cut can keep it,
// which is always for f32, f16 and bf16, for fp8_block if `begin` is a multiple of 128, for mxfp4 if `begin` and the
// end are multiples of 32; otherwise f32. Throws Failure if they are not all columns of the matrix.
WeightFormat columns_format(WeightFormat format, int64_t cols, int64_t begin, int64_t count);

// A copy of columns [begin, begin + count) of `w` in that format. Every element is weight_at's of w, to the bit; a
// quantised result keeps w's codes and scales (and row_phase).
OwnedWeight columns_of(const WeightView& w, int64_t begin, int64_t count);

// Bytes that the stored form of a matrix takes, scales included.
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols);

// What is wrong with the codes of a quantised matrix, as words for a message that say where, or nothing: an E8M0 scale
// of 255 (NaN); an FP8 scale that is negative, infinite or NaN; an FP8 code that is NaN. Reads all of it; plain formats
// always pass.
std::optional<std::string> find_bad_code(const WeightView& w);

}  // namespace trireme
