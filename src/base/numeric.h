// Number formats of checkpoints, decoded and encoded one value at a time. These definitions are the meaning; the vector
// code in ops/cpu is tested against them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace trireme {

// bfloat16: the upper half of a float32.
constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Round to nearest even; every NaN becomes a quiet NaN with the same sign.
constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// IEEE binary16, exact.
inline float f16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// E4M3 ("e4m3fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7f and 0xff are NaN; the largest is
// 448.
inline constexpr float kE4m3Max = 448.0F;

inline float e4m3_to_float(uint8_t code) {
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 7;
  float magnitude = 0;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 8), exponent - 10);
  }
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Round to nearest even, saturating at +-448 (infinities too); NaN becomes signed 0x7f.
inline uint8_t float_to_e4m3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  const float magnitude = std::fabs(value);
  if (magnitude >= kE4m3Max) return sign | 0x7e;
  if (magnitude == 0) return sign;  // frexp gives zero no exponent to go by
  // The quantum of the binade, at least that of the subnormals, 2^-9.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int quantum = exponent - 4 > -9 ? exponent - 4 : -9;
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -quantum)));  // 0..16
  // In the subnormal binade codes count quanta; above it every binade has 8 codes and starts at step 8.
  const int code = quantum == -9 ? steps : (quantum + 9) * 8 + steps;
  return static_cast<uint8_t>(sign | code);
}

// E2M1: bit 3 sign, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Only the low four bits of the code count.
constexpr float e2m1_to_float(uint8_t code) {
  constexpr float kMagnitude[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitude[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// E8M0: 2^(code - 127); 255 is NaN.
inline float e8m0_to_float(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, code - 127);
}

}  // namespace trireme
