#include "tensor/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/numeric.h"
#include "tensor/weight.h"

namespace trireme {
namespace {

// float_to_e4m3 for finite values, in a form that compilers vectorise.
uint8_t encode(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::min(std::bit_cast<float>(bits & 0x7fffffffU), kE4m3Max);
  const auto rounded = std::bit_cast<uint32_t>(magnitude);
  // From 2^-6 on: round the mantissa to 3 bits, then move the exponent's bias from 127 to 7.
  const uint32_t normal = ((rounded + 0x7ffffU + ((rounded >> 20) & 1U)) >> 20) - (120U << 3);
  // Below: the addition rounds to multiples of 2^-9, the unit in the last place of 2^14.
  const uint32_t subnormal = std::bit_cast<uint32_t>(magnitude + 16384.0F) - std::bit_cast<uint32_t>(16384.0F);
  return static_cast<uint8_t>((bits >> 24 & 0x80U) | (magnitude < 0x1p-6F ? subnormal : normal));
}

struct Block {
  const float* values;
  uint8_t* codes;
  int64_t rows, cols, stride;
};

float largest_magnitude(const Block& block, bool& finite) {
  float largest = 0;
  uint32_t exponents = 0;  // an infinity or NaN has all exponent bits
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t c = 0; c < block.cols; ++c) {
      const auto magnitude = std::bit_cast<uint32_t>(block.values[r * block.stride + c]) & 0x7fffffffU;
      exponents = std::max(exponents, magnitude);
      largest = std::max(largest, std::bit_cast<float>(magnitude));
    }
  }
  finite = exponents < 0x7f800000U;
  return largest;
}

QuantizationError quantize_block(const Block& block, float& scale) {
  static const auto kValues = [] {
    std::array<float, 256> values{};
    for (size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_float(static_cast<uint8_t>(code));
    return values;
  }();
  QuantizationError error;
  const float largest = largest_magnitude(block, error.finite);
  if (!error.finite) return error;
  scale = largest / kE4m3Max;
  if (scale == 0) scale = 1.0F;
  float worst = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* values = block.values + r * block.stride;
    uint8_t* codes = block.codes + r * block.stride;
    for (int64_t c = 0; c < block.cols; ++c) codes[c] = encode(values[c] / scale);
    double error_squares = 0;
    double value_squares = 0;
    for (int64_t c = 0; c < block.cols; ++c) {
      const float off = values[c] - kValues[codes[c]] * scale;
      worst = std::max(worst, std::fabs(off));
      error_squares += static_cast<double>(off) * off;
      value_squares += static_cast<double>(values[c]) * values[c];
    }
    error.error_squares += error_squares;
    error.value_squares += value_squares;
  }
  error.worst = largest > 0 ? static_cast<double>(worst) / largest : 0;
  return error;
}

}  // namespace

void QuantizationError::add(const QuantizationError& other) {
  error_squares += other.error_squares;
  value_squares += other.value_squares;
  worst = std::max(worst, other.worst);
  finite = finite && other.finite;
}

double QuantizationError::relative() const { return value_squares > 0 ? std::sqrt(error_squares / value_squares) : 0; }

QuantizationError quantize_fp8_rows(std::span<const float> values, int64_t rows, int64_t cols, std::span<uint8_t> codes,
                                    std::span<float> scales) {
  QuantizationError error;
  for (int64_t begin = 0; begin < cols; begin += kFp8Block) {
    const Block block{values.data() + begin, codes.data() + begin, rows, std::min(kFp8Block, cols - begin), cols};
    error.add(quantize_block(block, scales[static_cast<size_t>(begin / kFp8Block)]));
  }
  return error;
}

}  // namespace trireme
