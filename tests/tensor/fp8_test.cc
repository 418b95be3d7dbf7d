#include "tensor/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/numeric.h"
#include "base/rng.h"
#include "tensor/weight.h"

namespace trireme {
namespace {

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  QuantizationError error;
};

Quantized quantize(const std::vector<float>& values, int64_t rows, int64_t cols) {
  Quantized out{std::vector<uint8_t>(values.size()), std::vector<float>(static_cast<size_t>((cols + 127) / 128)), {}};
  out.error = quantize_fp8_rows(values, rows, cols, out.codes, out.scales);
  return out;
}

TEST(Fp8, EveryCodeComesBackWhenTheBlockReaches448) {
  std::vector<float> values;
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    codes.push_back(static_cast<uint8_t>(code));
    values.push_back(e4m3_to_float(static_cast<uint8_t>(code)));
  }
  // 127 codes of each sign, each of which holds +-448, so both blocks have scale 1.
  values.insert(values.begin() + 127, 0.0F);
  codes.insert(codes.begin() + 127, 0);
  values.push_back(0.0F);
  codes.push_back(0);
  const Quantized out = quantize(values, 1, 256);
  EXPECT_EQ(out.scales, (std::vector<float>{1.0F, 1.0F}));
  EXPECT_EQ(out.codes, codes);
  EXPECT_EQ(out.error.error_squares, 0);
}

TEST(Fp8, EncodingIsFloatToE4m3) {
  // All positive and negative bfloat16 values up to 448, one block at a time, with 448 in each so that the scale is 1.
  std::vector<float> finite;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::fabs(value) <= 448) finite.push_back(value);
  }
  // And the midpoints between codes with their neighbours, where rounding to even decides.
  for (int code = 0; code < 0x7e; ++code) {
    const float middle =
        (e4m3_to_float(static_cast<uint8_t>(code)) + e4m3_to_float(static_cast<uint8_t>(code + 1))) / 2;
    for (const float value : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1000.0F)}) {
      finite.push_back(value);
      finite.push_back(-value);
    }
  }
  for (size_t begin = 0; begin < finite.size(); begin += 127) {
    std::vector<float> block(finite.begin() + static_cast<std::ptrdiff_t>(begin),
                             finite.begin() + static_cast<std::ptrdiff_t>(std::min(begin + 127, finite.size())));
    block.push_back(448.0F);
    const Quantized out = quantize(block, 1, static_cast<int64_t>(block.size()));
    ASSERT_EQ(out.scales[0], 1.0F);
    for (size_t i = 0; i < block.size(); ++i) ASSERT_EQ(out.codes[i], float_to_e4m3(block[i])) << block[i];
  }
}

TEST(Fp8, TiesGoToTheEvenCode) {
  // Between 1 (0x38) and 1.125 (0x39); between 1.125 and 1.25 (0x3a); between 0 and 2^-9; between 2^-9 and 2^-8.
  const Quantized out = quantize({448.0F, 1.0625F, 1.1875F, 0x1p-10F, 0x1.8p-9F, -1.0625F}, 1, 6);
  EXPECT_EQ(out.codes, (std::vector<uint8_t>{0x7e, 0x38, 0x3a, 0x00, 0x02, 0xb8}));
}

TEST(Fp8, ScaleIsLargestOver448) {
  const Quantized out = quantize({-3.5F, 1.0F, 0.25F}, 1, 3);
  EXPECT_EQ(out.scales[0], 3.5F / 448.0F);
  EXPECT_EQ(out.codes[0], 0xfe);  // -448
  EXPECT_EQ(out.codes[1], float_to_e4m3(1.0F / out.scales[0]));
}

TEST(Fp8, BlockOfZerosHasScaleOne) {
  std::vector<float> values(256, 0.0F);
  values[200] = 7.0F;
  values[3] = -0.0F;
  const Quantized out = quantize(values, 1, 256);
  EXPECT_EQ(out.scales[0], 1.0F);
  EXPECT_EQ(out.codes[0], 0);
  EXPECT_EQ(out.codes[3], 0x80);
  EXPECT_EQ(out.scales[1], 7.0F / 448.0F);
  EXPECT_EQ(quantize(std::vector<float>(5, 0.0F), 1, 5).error.relative(), 0);
}

TEST(Fp8, ValuesTooSmallForAScaleBecomeZero) {
  const Quantized out = quantize({1e-45F, -1e-45F}, 1, 2);
  EXPECT_EQ(out.scales[0], 1.0F);
  EXPECT_EQ(out.codes, (std::vector<uint8_t>{0x00, 0x80}));
}

TEST(Fp8, RaggedBlocksHaveTheirOwnScalesAndErrorIsSmall) {
  const int64_t rows = 64;
  const int64_t cols = 300;
  std::vector<float> values;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double spread = i % cols < 128 ? 1.0 : i % cols < 256 ? 100.0 : 0.01;
    values.push_back(static_cast<float>((uniform_at(5, static_cast<uint64_t>(i), 0) - 0.5) * spread));
  }
  const Quantized out = quantize(values, rows, cols);
  ASSERT_EQ(out.scales.size(), 3U);
  EXPECT_NEAR(out.scales[1] / out.scales[0], 100, 2);
  EXPECT_NEAR(out.scales[0] / out.scales[2], 100, 2);
  const WeightView view{WeightFormat::fp8_block, rows, cols, std::as_bytes(std::span(out.codes)),
                        std::as_bytes(std::span(out.scales))};
  double squares = 0;
  double total = 0;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double off = static_cast<double>(values[static_cast<size_t>(i)]) - weight_at(view, i / cols, i % cols);
    squares += off * off;
    total += static_cast<double>(values[static_cast<size_t>(i)]) * values[static_cast<size_t>(i)];
  }
  EXPECT_NEAR(out.error.relative(), std::sqrt(squares / total), 1e-6);
  EXPECT_GT(out.error.relative(), 0.01);
  EXPECT_LT(out.error.relative(), 0.04);
  EXPECT_LE(out.error.worst, 16.0 / 448 + 1e-6);  // half a step of the top binade
}

TEST(Fp8, InfinitiesAndNansAreReported) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(quantize({1.0F, infinity}, 1, 2).error.finite);
  EXPECT_FALSE(quantize({-infinity, 1.0F}, 1, 2).error.finite);
  EXPECT_FALSE(quantize({std::numeric_limits<float>::quiet_NaN(), 1.0F}, 1, 2).error.finite);
  EXPECT_TRUE(quantize({3e38F, 1.0F}, 1, 2).error.finite);
}

TEST(Numeric, E4m3TableByDefinition) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const double sign = (code & 0x80) != 0 ? -1 : 1;
    const double value = exponent == 0 ? mantissa * std::exp2(-9) : (1 + mantissa / 8.0) * std::exp2(exponent - 7);
    const float decoded = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(decoded));
    } else {
      EXPECT_EQ(decoded, sign * value);
      EXPECT_EQ(float_to_e4m3(decoded), code);
    }
  }
  EXPECT_EQ(float_to_e4m3(1e9F), 0x7e);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(float_to_e4m3(464.0F), 0x7e);
}

}  // namespace
}  // namespace trireme
