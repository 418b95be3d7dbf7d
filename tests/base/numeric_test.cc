// Every code and every tie of the number formats, against their definitions and against exhaustive search.
#include "base/numeric.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Bf16, EveryCodeSurvives) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = bf16_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_EQ(float_to_bf16(value), bits | 0x40) << code;  // quiet, same sign
    } else {
      EXPECT_EQ(float_to_bf16(value), bits) << code;
    }
  }
}

// Between two neighbours: below the middle down, above it up, in the middle to the even one.
TEST(Bf16, TiesGoToEven) {
  for (uint32_t code = 0; code < 0x7f7f; ++code) {
    const uint32_t middle = (code << 16) | 0x8000;
    const auto below = std::bit_cast<float>(middle - 1);
    const auto tie = std::bit_cast<float>(middle);
    const auto above = std::bit_cast<float>(middle + 1);
    EXPECT_EQ(float_to_bf16(below), code);
    EXPECT_EQ(float_to_bf16(tie), code + (code & 1));
    EXPECT_EQ(float_to_bf16(above), code + 1);
    EXPECT_EQ(float_to_bf16(-tie), 0x8000 | (code + (code & 1)));
  }
}

TEST(Bf16, Extremes) {
  EXPECT_EQ(round_to_bf16(kInf), kInf);
  EXPECT_EQ(round_to_bf16(-kInf), -kInf);
  EXPECT_EQ(round_to_bf16(std::numeric_limits<float>::max()), kInf);
  EXPECT_TRUE(std::isnan(round_to_bf16(std::bit_cast<float>(0x7f800001U))));  // the payload is in the lost half
  EXPECT_TRUE(std::signbit(round_to_bf16(-0.0F)));
}

TEST(F16, KnownValues) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0F);
  EXPECT_EQ(f16_to_float(0xc000), -2.0F);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_float(0x03ff), 1023 * 0x1p-24F);
  EXPECT_EQ(f16_to_float(0x0400), 0x1p-14F);
  EXPECT_EQ(f16_to_float(0x7c00), kInf);
  EXPECT_EQ(f16_to_float(0xfc00), -kInf);
  EXPECT_TRUE(std::isnan(f16_to_float(0x7e00)));
  EXPECT_TRUE(std::signbit(f16_to_float(0x8000)));
  for (uint16_t code = 1; code <= 0x7c00; ++code) {
    EXPECT_LT(f16_to_float(static_cast<uint16_t>(code - 1)), f16_to_float(code)) << code;
  }
}

TEST(E4m3, EveryCodeSurvives) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    const float value = e4m3_to_float(bits);
    EXPECT_EQ(std::isnan(value), (code & 0x7f) == 0x7f) << code;
    EXPECT_EQ(float_to_e4m3(value), bits) << code;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6F);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0F);
}

TEST(E4m3, TiesGoToEven) {
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float a = e4m3_to_float(code);
    const float b = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (a + b) / 2;  // exact in float32
    const uint8_t even = code % 2 == 0 ? code : static_cast<uint8_t>(code + 1);
    EXPECT_EQ(float_to_e4m3(middle), even) << int{code};
    EXPECT_EQ(float_to_e4m3(-middle), even | 0x80) << int{code};
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0F)), code) << int{code};
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, kInf)), code + 1) << int{code};
  }
}

// The nearest of all codes for many values, found by search.
TEST(E4m3, NearestOfAll) {
  for (uint32_t bits = 0x3a000000; bits < 0x43e00000; bits += 0x3571) {
    const auto value = std::bit_cast<float>(bits);
    float best = kInf;
    for (uint8_t code = 0; code < 0x7f; ++code) best = std::min(best, std::fabs(e4m3_to_float(code) - value));
    EXPECT_EQ(std::fabs(e4m3_to_float(float_to_e4m3(value)) - value), best) << value;
  }
}

TEST(E4m3, Saturates) {
  EXPECT_EQ(float_to_e4m3(448.1F), 0x7e);
  EXPECT_EQ(float_to_e4m3(1e30F), 0x7e);
  EXPECT_EQ(float_to_e4m3(kInf), 0x7e);
  EXPECT_EQ(float_to_e4m3(-kInf), 0xfe);
  EXPECT_EQ(float_to_e4m3(0x1p-10F), 0);  // half the smallest: to even
  EXPECT_EQ(float_to_e4m3(-1e-30F), 0x80);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

TEST(E2m1, AllCodes) {
  const float want[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code)), want[code]);
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code | 0xa0)), want[code]) << "upper bits must not count";
    EXPECT_EQ(std::signbit(e2m1_to_float(static_cast<uint8_t>(code))), code >= 8);
  }
}

TEST(E8m0, AllCodes) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0F, code - 127));
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127F);
  EXPECT_EQ(e8m0_to_float(254), 0x1p127F);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

}  // namespace
}  // namespace trireme
