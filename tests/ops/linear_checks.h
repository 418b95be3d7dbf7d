// What tests of matrix products share.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ops_compare.h"

namespace trireme::ops::test {

inline bool stored_shape(WeightFormat format, int64_t cols) {
  return format != WeightFormat::mxfp4 || cols % kMxBlock == 0;
}

inline std::vector<float> widened(const StoredWeight& w) {
  std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
  widen(w.view(), values);
  return values;
}

// Every result against its float64 sum: float32 accumulation may lose K rounding steps of the sum of magnitudes, and
// rounding to bfloat16 one unit in the last place. Returns the number of results out of bounds.
inline int64_t out_of_bounds(ConstRows x, const std::vector<float>& w, ConstRows y, bool rounded) {
  int64_t bad = 0;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t n = 0; n < y.cols; ++n) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t k = 0; k < x.cols; ++k) {
        const double product = static_cast<double>(x.row(t)[k]) * w[static_cast<size_t>(n * x.cols + k)];
        sum += product;
        magnitude += std::fabs(product);
      }
      const double accumulated = magnitude * static_cast<double>(x.cols + 4) * 0x1p-24;
      const double bound = accumulated + (rounded ? (std::fabs(sum) + accumulated) * 0x1p-8 : 0) + 1e-37;
      if (!(std::fabs(y.row(t)[n] - sum) <= bound)) ++bad;
    }
  }
  return bad;
}

// ops.linear of rows [begin, begin + count) of x.
inline Matrix product(const Ops& ops, const Matrix& x, int64_t begin, int64_t count, const PackedMatrix& w,
                      Output output) {
  Matrix y = poisoned(count, w.rows);
  ops.linear(x.view().row_range(begin, count), w, y.view(), output);
  return y;
}

inline bool row_equals(const Matrix& a, int64_t row_a, const Matrix& b, int64_t row_b) {
  return std::memcmp(a.view().row(row_a), b.view().row(row_b), static_cast<size_t>(a.cols()) * 4) == 0;
}

// The rows of x in calls of many sizes have the bits that they have alone.
inline void expect_row_independence(const Ops& ops, const Matrix& x, const PackedMatrix& w, Output output) {
  const Matrix all = product(ops, x, 0, x.rows(), w, output);
  for (int64_t t = 0; t < x.rows(); t += t < 18 ? 1 : 7) {
    ASSERT_TRUE(row_equals(product(ops, x, t, 1, w, output), 0, all, t)) << "row " << t << " alone";
  }
  for (const int64_t count : {2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 25, 33}) {
    if (count > x.rows()) break;
    const int64_t begin = (count * 5) % (x.rows() - count + 1);
    const Matrix part = product(ops, x, begin, count, w, output);
    for (int64_t t = 0; t < count; ++t) ASSERT_TRUE(row_equals(part, t, all, begin + t)) << count << " rows, row " << t;
  }
}

inline void check_shape(const Ops& ops, WeightFormat format, int64_t n, int64_t k, int64_t rows) {
  SCOPED_TRACE(std::string(weight_format_name(format)) + " " + std::to_string(n) + " x " + std::to_string(k));
  const StoredWeight stored = random_weight(format, n, k, static_cast<uint64_t>(n * 1000 + k));
  const PackedMatrix w = pack(ops, stored);
  const std::vector<float> values = widened(stored);
  const Matrix x = random_matrix(rows, k, static_cast<uint64_t>(k), 1, ops.precision());
  for (const Output output : {Output::rounded, Output::f32}) {
    const Matrix y = product(ops, x, 0, rows, w, output);
    const bool rounded = ops.precision() == Precision::bf16 && output == Output::rounded;
    ASSERT_EQ(out_of_bounds(x.view(), values, y.view(), rounded), 0) << "rounded " << rounded;
    if (rounded) {
      for (const float v : span_of(y)) ASSERT_EQ(v, round_to_bf16(v));
    }
    expect_row_independence(ops, x, w, output);
  }
}

}  // namespace trireme::ops::test
