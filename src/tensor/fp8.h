// Block-FP8 quantisation: E4M3 codes with one float32 scale for each block of 128 x 128 (WeightFormat::fp8_block).
#pragma once

#include <cstdint>
#include <span>

namespace trireme {

// How far quantised values are from their originals, as sums so that parts can be added up.
struct QuantizationError {
  double error_squares = 0;  // sum of (value - code * scale)^2
  double value_squares = 0;  // sum of value^2
  double worst = 0;          // largest |value - code * scale| / largest |value| of the block
  bool finite = true;        // false: a value was infinite or NaN, and the codes mean nothing
  void add(const QuantizationError& other);
  double relative() const;  // sqrt(error_squares / value_squares); 0 for all zeros
};

// Quantises `rows` rows (at most 128: one row of blocks; fewer at the ragged end) of `cols` values, row-major:
//   scale = max|value| / 448 over the block, 1 for a block of zeros;  code = e4m3(value / scale), ties to even,
// both quotients in float32.
// `codes` holds rows * cols, `scales` ceil(cols / 128).
QuantizationError quantize_fp8_rows(std::span<const float> values, int64_t rows, int64_t cols, std::span<uint8_t> codes,
                                    std::span<float> scales);

}  // namespace trireme
