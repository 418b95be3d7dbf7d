// What the tests of the CPU backends' row operations share: the same call on the reference and on every CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops_compare.h"

namespace trireme::ops::test {

// Close means: in f32, 2e-6 of the norm; in bf16, two roundings apart in any element and 4e-3 of the norm (a result
// near the middle of two bfloat16 values may go either way). `slack` is what may come on top in bf16, as a part of the
// largest element.
inline void expect_close(std::span<const float> out, std::span<const float> ref, Precision precision,
                         double slack = 1e-3) {
  ASSERT_EQ(out.size(), ref.size());
  if (precision == Precision::f32) {
    EXPECT_LT(relative_error(out, ref), 2e-6);
    return;
  }
  EXPECT_LT(relative_error(out, ref), 4e-3);
  double largest = 0;
  for (const float r : ref) largest = std::isfinite(r) ? std::max(largest, std::fabs(static_cast<double>(r))) : largest;
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(out[i]) || std::isnan(ref[i])) continue;  // relative_error has checked that they agree
    if (out[i] == ref[i]) continue;
    const double d = std::fabs(static_cast<double>(out[i]) - ref[i]);
    ASSERT_LE(d, std::fabs(static_cast<double>(ref[i])) * 0x1p-6 + slack * largest)
        << "element " << i << ": " << out[i] << ", not " << ref[i];
  }
}

inline void expect_close(const Matrix& out, const Matrix& ref, Precision precision, double slack = 1e-3) {
  expect_close(span_of(out), span_of(ref), precision, slack);
}

// Rows of `cols` used columns inside wider rows, whose other columns hold a mark that must survive.
class Strided {
 public:
  static constexpr float kMark = 12345.0F;

  Strided(int64_t rows, int64_t cols, int64_t extra = 5) : memory_(rows, cols + extra), cols_(cols) {
    std::fill_n(memory_.data(), rows * (cols + extra), kMark);
    for (int64_t r = 0; r < rows; ++r) std::fill_n(view().row(r), cols, std::numeric_limits<float>::quiet_NaN());
  }
  explicit Strided(const Matrix& from, int64_t extra = 5) : Strided(from.rows(), from.cols(), extra) {
    for (int64_t r = 0; r < from.rows(); ++r) std::copy_n(from.view().row(r), from.cols(), view().row(r));
  }

  Rows view() { return {memory_.data() + 2, memory_.rows(), cols_, memory_.cols()}; }
  Matrix dense() {
    Matrix m(memory_.rows(), cols_);
    for (int64_t r = 0; r < memory_.rows(); ++r) std::copy_n(view().row(r), cols_, m.view().row(r));
    return m;
  }
  bool margins_kept() const {
    for (int64_t r = 0; r < memory_.rows(); ++r) {
      for (int64_t c = 0; c < memory_.cols(); ++c) {
        if ((c < 2 || c >= 2 + cols_) && memory_.view().row(r)[c] != kMark) return false;
      }
    }
    return true;
  }

 private:
  Matrix memory_;
  int64_t cols_;
};

// Backends of this machine but the reference.
inline std::vector<std::string_view> cpu_isas() {
  std::vector<std::string_view> isas = available_isas();
  std::erase(isas, "reference");
  return isas;
}

// Calls body(ops, reference) for every CPU backend and both precisions.
template <class Body>
void for_each_cpu(const Body& body, int threads = 2) {
  ThreadPool pool(threads);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    const std::unique_ptr<Ops> reference = make_ops("reference", precision, pool);
    for (const std::string_view isa : cpu_isas()) {
      SCOPED_TRACE(std::string(isa) + (precision == Precision::bf16 ? " in bf16" : " in f32"));
      const std::unique_ptr<Ops> ops = make_ops(isa, precision, pool);
      body(*ops, *reference);
    }
  }
}

inline Matrix rows_of(const Matrix& m, int64_t begin, int64_t count) {
  Matrix part(count, m.cols());
  std::copy_n(m.data() + begin * m.cols(), count * m.cols(), part.data());
  return part;
}

}  // namespace trireme::ops::test
