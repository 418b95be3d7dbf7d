// What the tests of operations share: random data that is a pure function of a seed, poisoned outputs, errors, and a
// loop over the backends of this machine. All random values come from hashes, so a failing case can be repeated alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/numeric.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "ops/ops.h"
#include "ops/select.h"
#include "tensor/matrix.h"
#include "tensor/weight.h"

namespace trireme::ops::test {

// ---- random data

// Near N(0, 1), within +-6: the sum of twelve uniform numbers less six, so no libm is involved.
inline double normal_at(uint64_t seed, int64_t index) {
  double sum = -6;
  for (uint64_t j = 0; j < 12; ++j) sum += uniform_at(seed, static_cast<uint64_t>(index), j);
  return sum;
}

// `mean + deviation * N(0, 1)`; with Precision::bf16 rounded to what bfloat16 can hold.
inline std::vector<float> random_normal(int64_t count, uint64_t seed, double deviation = 1, double mean = 0,
                                        Precision precision = Precision::f32) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto v = static_cast<float>(mean + deviation * normal_at(seed, static_cast<int64_t>(i)));
    values[i] = precision == Precision::bf16 ? round_to_bf16(v) : v;
  }
  return values;
}

inline std::vector<float> random_uniform(int64_t count, uint64_t seed, double low, double high) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(low + (high - low) * uniform_at(seed, i, 77));
  }
  return values;
}

inline Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed, double deviation = 1,
                            Precision precision = Precision::f32) {
  Matrix m(rows, cols);
  const std::vector<float> values = random_normal(rows * cols, seed, deviation, 0, precision);
  std::copy(values.begin(), values.end(), m.data());
  return m;
}

// A matrix every element of which must be overwritten: NaN stays visible in any comparison.
inline Matrix poisoned(int64_t rows, int64_t cols) {
  Matrix m(rows, cols);
  std::fill_n(m.data(), rows * cols, std::numeric_limits<float>::quiet_NaN());
  return m;
}

// A weight matrix as a checkpoint would store it.
struct StoredWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;

  WeightView view() const { return {format, rows, cols, data, scales}; }
};

namespace detail {
template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

// Finite values only; the nearest is not needed for random data, so the mantissa is cut.
inline uint16_t float_to_f16_cut(float value) {
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);
  if (value == 0 || exponent < -13) return 0;
  const int bits = (exponent + 14) << 10 | (static_cast<int>(mantissa * 2048) & 0x3ff);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | bits);
}
}  // namespace detail

// Random weights of about N(0, deviation^2 / cols), so that products of N(0, 1) rows have about that deviation. Block
// scales differ from block to block. mxfp4 needs cols % 32 == 0.
inline StoredWeight random_weight(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed,
                                  double deviation = 1) {
  StoredWeight w{format, rows, cols, {}, {}};
  const double sigma = deviation / std::sqrt(static_cast<double>(cols));
  const auto value = [&](int64_t i) { return static_cast<float>(sigma * normal_at(seed, i)); };
  const auto uniform = [&](int64_t i) { return uniform_at(seed, static_cast<uint64_t>(i), 1000); };
  switch (format) {
    case WeightFormat::f32:
      for (int64_t i = 0; i < rows * cols; ++i) detail::append(w.data, value(i));
      break;
    case WeightFormat::f16:
      for (int64_t i = 0; i < rows * cols; ++i) detail::append(w.data, detail::float_to_f16_cut(value(i)));
      break;
    case WeightFormat::bf16:
      for (int64_t i = 0; i < rows * cols; ++i) detail::append(w.data, float_to_bf16(value(i)));
      break;
    case WeightFormat::fp8_block: {
      for (int64_t i = 0; i < rows * cols; ++i) {
        detail::append(w.data, float_to_e4m3(static_cast<float>(64 * normal_at(seed, i))));
      }
      const int64_t blocks = (rows + kFp8Block - 1) / kFp8Block * ((cols + kFp8Block - 1) / kFp8Block);
      for (int64_t i = 0; i < blocks; ++i) {
        detail::append(w.scales, static_cast<float>(sigma / 64 * (0.5 + uniform(i))));
      }
      break;
    }
    case WeightFormat::mxfp4:
      for (int64_t i = 0; i < rows * cols / 2; ++i) {
        detail::append(w.data, static_cast<uint8_t>(mix64(seed ^ mix64(static_cast<uint64_t>(i)))));
      }
      // E2M1 codes drawn evenly have a deviation of 2.9, and scales of half, one and double make it 3.9.
      for (int64_t i = 0; i < rows * cols / kMxBlock; ++i) {
        const int exponent =
            static_cast<int>(std::lround(std::log2(sigma / 3.9))) + static_cast<int>(uniform(i) * 3) - 1;
        detail::append(w.scales, static_cast<uint8_t>(127 + exponent));
      }
      break;
  }
  return w;
}

// A float32 matrix in the form of a checkpoint's.
inline StoredWeight f32_weight(int64_t rows, int64_t cols, std::span<const float> values) {
  StoredWeight w{WeightFormat::f32, rows, cols, {}, {}};
  w.data.resize(values.size_bytes());
  std::memcpy(w.data.data(), values.data(), values.size_bytes());
  return w;
}

inline PackedMatrix pack(const Ops& ops, const StoredWeight& w) {
  return ops.pack(w.view(), Buffer(ops.packed_bytes(w.format, w.rows, w.cols)));
}

// ---- comparison

// ||out - ref|| / ||ref|| in float64; infinite when a value of `out` is NaN where that of `ref` is not.
inline double relative_error(std::span<const float> out, std::span<const float> ref) {
  double difference = 0;
  double size = 0;
  if (out.size() != ref.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(ref[i]) && std::isnan(out[i])) continue;
    if (out[i] == ref[i]) {  // equal infinities too
      if (std::isfinite(ref[i])) size += static_cast<double>(ref[i]) * ref[i];
      continue;
    }
    const double d = static_cast<double>(out[i]) - ref[i];
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference += d * d;
    size += static_cast<double>(ref[i]) * ref[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

inline double relative_error(const Matrix& out, const Matrix& ref) {
  return relative_error(std::span(out.data(), static_cast<size_t>(out.rows() * out.cols())),
                        std::span(ref.data(), static_cast<size_t>(ref.rows() * ref.cols())));
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

inline bool same_bits(const Matrix& a, const Matrix& b) {
  return a.rows() == b.rows() && same_bits(std::span(a.data(), static_cast<size_t>(a.rows() * a.cols())),
                                           std::span(b.data(), static_cast<size_t>(b.rows() * b.cols())));
}

inline std::span<const float> span_of(const Matrix& m) { return {m.data(), static_cast<size_t>(m.rows() * m.cols())}; }

// ---- backends

// Calls body(ops) for every backend of this machine at `precision`, with the backend's name in any failure's trace.
template <class Body>
void for_each_isa(Precision precision, const Body& body, int threads = 2) {
  ThreadPool pool(threads);
  for (const std::string_view isa : available_isas()) {
    SCOPED_TRACE(std::string(isa) + (precision == Precision::bf16 ? " in bf16" : " in f32"));
    const std::unique_ptr<Ops> ops = make_ops(isa, precision, pool);
    body(*ops);
  }
}

}  // namespace trireme::ops::test
