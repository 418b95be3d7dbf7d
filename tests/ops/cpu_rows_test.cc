// Row operations of the CPU backends: elementary functions against float64, operations against the reference.
#include <functional>

#include "ops/cpu/row_kernels.h"
#include "ops/cpu_compare.h"

namespace trireme::ops::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::pair<std::string, const cpu::RowKernels*>> tables() {
  std::vector<std::pair<std::string, const cpu::RowKernels*>> found;
  for (const std::string_view isa : cpu_isas()) {
    if (isa == "avx2") found.emplace_back("avx2", &cpu::kRowKernelsAvx2);
    if (isa == "avx512") found.emplace_back("avx512", &cpu::kRowKernelsAvx512);
  }
  return found;
}

using Function = void (*)(const float*, int64_t, float*);

// The largest relative error over arguments spread over [low, high], and over small and large ones of either sign.
double worst_error(Function f, const std::function<double(double)>& exact, double low, double high) {
  std::vector<float> x = random_uniform(200001, 1, low, high);
  for (double m = 1e-30; m < high; m *= 1.37) {
    x.push_back(static_cast<float>(m));
    if (-m > low) x.push_back(static_cast<float>(-m));
  }
  std::vector<float> y(x.size());
  f(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = exact(x[i]);
    if (std::fabs(e) < std::numeric_limits<float>::min()) continue;  // subnormal: no relative error to speak of
    worst = std::max(worst, std::fabs(y[i] - e) / std::fabs(e));
  }
  return worst;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

TEST(CpuMath, RelativeErrors) {
  for (const auto& [name, t] : tables()) {
    SCOPED_TRACE(name);
    EXPECT_LT(worst_error(
                  t->exp, [](double x) { return std::exp(x); }, -87, 88.7),
              2e-7);
    EXPECT_LT(worst_error(t->sigmoid, sigmoid, -86, 200), 2.5e-7);
    EXPECT_LT(worst_error(
                  t->tanh, [](double x) { return std::tanh(x); }, -15, 15),
              3e-7);
    EXPECT_LT(worst_error(t->softplus, softplus, -86, 200), 2.5e-7);
  }
}

TEST(CpuMath, Limits) {
  const std::vector<float> x = {kInf, -kInf, kNan, 1000, -1000, 3e38F, -3e38F, 0, -0.0F, 89, -104, 1e-40F, -kNan};
  const auto n = static_cast<int64_t>(x.size());
  for (const auto& [name, t] : tables()) {
    SCOPED_TRACE(name);
    std::vector<float> e(x.size()), s(x.size()), h(x.size()), p(x.size());
    t->exp(x.data(), n, e.data());
    t->sigmoid(x.data(), n, s.data());
    t->tanh(x.data(), n, h.data());
    t->softplus(x.data(), n, p.data());
    const std::vector<float> exp_expected = {kInf, 0, kNan, kInf, 0, kInf, 0, 1, 1, kInf, 0, 1, kNan};
    const std::vector<float> sigmoid_expected = {1, 0, kNan, 1, 0, 1, 0, 0.5F, 0.5F, 1, 0, 0.5F, kNan};
    const std::vector<float> tanh_expected = {1, -1, kNan, 1, -1, 1, -1, 0, 0, 1, -1, 1e-40F, kNan};
    const float log2 = 0.6931472F;
    const std::vector<float> softplus_expected = {kInf, 0, kNan, 1000, 0, 3e38F, 0, log2, log2, 89, 0, log2, kNan};
    for (size_t i = 0; i < x.size(); ++i) {
      SCOPED_TRACE(x[i]);
      const auto same = [](float a, float b) { return (std::isnan(a) && std::isnan(b)) || a == b; };
      EXPECT_TRUE(same(e[i], exp_expected[i])) << e[i];
      EXPECT_TRUE(same(s[i], sigmoid_expected[i])) << s[i];
      EXPECT_TRUE(same(h[i], tanh_expected[i])) << h[i];
      EXPECT_TRUE(same(p[i], softplus_expected[i])) << p[i];
    }
  }
}

// A value's result must not depend on where in a row it stands: vectors and tails are one arithmetic.
TEST(CpuMath, TailsEqualVectors) {
  const std::vector<float> x = random_uniform(67, 3, -20, 20);
  for (const auto& [name, t] : tables()) {
    for (const Function f : {t->exp, t->sigmoid, t->tanh, t->softplus}) {
      std::vector<float> whole(x.size()), single(x.size());
      f(x.data(), 67, whole.data());
      for (size_t i = 0; i < x.size(); ++i) f(&x[i], 1, &single[i]);
      EXPECT_TRUE(same_bits(whole, single)) << name;
    }
  }
}

TEST(CpuMath, BfloatRoundingIsThatOfNumeric) {
  std::vector<float> x;
  for (uint64_t i = 0; i < 50000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(mix64(i))));
  for (const uint32_t low : {0x0000U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {  // each side of every kind of tie
    for (uint32_t high = 0; high < 0x10000; high += 7) x.push_back(std::bit_cast<float>(high << 16 | low));
    for (const uint32_t high : {0x7f7fU, 0x7f80U, 0xff80U, 0x7fffU, 0xffffU, 0x8000U, 0x0001U}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  for (const auto& [name, t] : tables()) {
    std::vector<uint16_t> y(x.size());
    t->to_bf16(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i], float_to_bf16(x[i])) << name << " of bits " << std::bit_cast<uint32_t>(x[i]);
    }
    const std::vector<float> zeros(x.size(), -0.0F);  // x + -0 = x, rounded
    std::vector<float> sum(x.size());
    t->add_row(x.data(), zeros.data(), static_cast<int64_t>(x.size()), true, sum.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(sum[i]));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(sum[i]), std::bit_cast<uint32_t>(round_to_bf16(x[i])));
      }
    }
  }
}

// Every row operation in one form: from x, a second input and a vector of weights to y. `dim` divides cols.
struct RowOperation {
  std::string name;
  std::function<void(const Ops&, ConstRows x, ConstRows other, const float* w, int64_t dim, Rows y)> run;
};

std::vector<RowOperation> operations() {
  std::vector<RowOperation> list = {
      {"rms_norm",
       [](const Ops& o, ConstRows x, ConstRows, const float* w, int64_t, Rows y) { o.rms_norm(x, w, 1e-5F, y); }},
      {"residual_mix",
       [](const Ops& o, ConstRows x, ConstRows other, const float* w, int64_t, Rows y) {
         const ConstRows bank[] = {other, x, other, other, x, x, other, x};
         o.residual_mix(bank, x, w, 1e-5F, y);
       }},
      {"residual_mix without a bank", [](const Ops& o, ConstRows x, ConstRows, const float* w, int64_t,
                                         Rows y) { o.residual_mix({}, x, w, 1e-5F, y); }},
      {"add", [](const Ops& o, ConstRows x, ConstRows other, const float*, int64_t, Rows y) { o.add(x, other, y); }},
      {"sigmoid_gate",
       [](const Ops& o, ConstRows x, ConstRows other, const float*, int64_t, Rows y) { o.sigmoid_gate(x, other, y); }},
      {"gated_rms_norm", [](const Ops& o, ConstRows x, ConstRows other, const float* w, int64_t dim,
                            Rows y) { o.gated_rms_norm(x, w, other, dim, 1e-5F, y); }},
      {"situ",
       [](const Ops& o, ConstRows x, ConstRows other, const float*, int64_t, Rows y) { o.glu(x, other, {}, y); }},
      {"situ with other caps",
       [](const Ops& o, ConstRows x, ConstRows other, const float*, int64_t, Rows y) {
         o.glu(x, other, {Glu::Kind::situ, 2.5F, 7.0F}, y);
       }},
      {"swiglu", [](const Ops& o, ConstRows x, ConstRows other, const float*, int64_t,
                    Rows y) { o.glu(x, other, {.kind = Glu::Kind::swiglu}, y); }},
  };
  return list;
}

TEST(CpuRows, EqualTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const auto& [cols, dim] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                                            {7, 7},
                                                                            {8, 4},
                                                                            {15, 5},
                                                                            {16, 16},
                                                                            {17, 17},
                                                                            {31, 31},
                                                                            {64, 32},
                                                                            {80, 40},
                                                                            {200, 100},
                                                                            {1024, 128},
                                                                            {4832, 4832},
                                                                            {9000, 9000}}) {
      for (const int64_t rows : {0, 1, 3}) {
        Strided x(random_matrix(rows, cols, 1, 2.0, ops.precision()));
        Strided other(random_matrix(rows, cols, 2, 3.0, ops.precision()));
        const std::vector<float> w = random_normal(cols, 3);
        for (const RowOperation& op : operations()) {
          SCOPED_TRACE(testing::Message() << op.name << " of " << rows << " x " << cols);
          Strided y(rows, cols);
          Matrix expected = poisoned(rows, cols);
          op.run(ops, x.view(), other.view(), w.data(), dim, y.view());
          op.run(reference, x.view(), other.view(), w.data(), dim, expected.view());
          expect_close(y.dense(), expected, ops.precision());
          EXPECT_TRUE(y.margins_kept());
        }
      }
    }
  });
}

TEST(CpuRows, InPlaceIsTheSame) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    const Matrix x = random_matrix(3, 100, 1, 1.0, ops.precision());
    const Matrix other = random_matrix(3, 100, 2, 1.0, ops.precision());
    const std::vector<float> w = random_normal(100, 3);
    for (const RowOperation& op : operations()) {
      if (op.name.starts_with("residual_mix")) continue;  // not promised
      SCOPED_TRACE(op.name);
      Matrix y = poisoned(3, 100);
      Matrix in_place = x;
      op.run(ops, x.view(), other.view(), w.data(), 25, y.view());
      op.run(ops, in_place.view(), other.view(), w.data(), 25, in_place.view());
      EXPECT_TRUE(same_bits(y, in_place));
    }
    for (const bool situ : {true, false}) {  // y may be the second input of add and glu
      const Glu glu{situ ? Glu::Kind::situ : Glu::Kind::swiglu};
      Matrix y = poisoned(3, 100);
      Matrix up = other;
      ops.glu(x.view(), other.view(), glu, y.view());
      ops.glu(x.view(), up.view(), glu, up.view());
      EXPECT_TRUE(same_bits(y, up));
    }
    Matrix y = poisoned(3, 100);
    Matrix b = other;
    ops.add(x.view(), other.view(), y.view());
    ops.add(x.view(), b.view(), b.view());
    EXPECT_TRUE(same_bits(y, b));
  });
}

// A row alone, in a batch, and on other numbers of threads.
TEST(CpuRows, RowsAreIndependent) {
  constexpr int64_t kRows = 37;
  ThreadPool one(1);
  for_each_cpu(
      [&](const Ops& ops, const Ops&) {
        const std::unique_ptr<Ops> serial = make_ops(ops.name(), ops.precision(), one);
        for (const int64_t cols : {24, 1000, 9000}) {
          Matrix x = random_matrix(kRows, cols, 1, 1.0, ops.precision());
          std::fill_n(x.view().row(5), cols, kNan);
          x.view().row(9)[3] = kInf;
          const Matrix other = random_matrix(kRows, cols, 2, 1.0, ops.precision());
          const std::vector<float> w = random_normal(cols, 3);
          for (const RowOperation& op : operations()) {
            SCOPED_TRACE(op.name);
            Matrix whole = poisoned(kRows, cols), again = poisoned(kRows, cols), single = poisoned(kRows, cols);
            op.run(ops, x.view(), other.view(), w.data(), cols / 8, whole.view());
            op.run(*serial, x.view(), other.view(), w.data(), cols / 8, again.view());
            EXPECT_TRUE(same_bits(whole, again));
            for (int64_t r = 0; r < kRows; ++r) {
              op.run(ops, x.view().row_range(r, 1), other.view().row_range(r, 1), w.data(), cols / 8,
                     single.view().row_range(r, 1));
            }
            EXPECT_TRUE(same_bits(whole, single));
            for (int64_t r = 0; r < kRows; ++r) {
              if (r == 5 || r == 9) continue;
              for (int64_t c = 0; c < cols; ++c) ASSERT_FALSE(std::isnan(whole.view().row(r)[c])) << "row " << r;
            }
          }
        }
      },
      3);
}

TEST(CpuRows, HostileValuesEqualTheReference) {
  const float values[] = {0,    -0.0F, 1e30F, -1e30F, 1e-40F, 88,   -88,  200,
                          -200, 1e4F,  -1e4F, kInf,   -kInf,  kNan, 0.3F, -7};
  constexpr int64_t kCount = 16;
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    // Every pair of values, as elements of their own rows, so that one cannot hide behind another.
    Matrix x(kCount * kCount, 1), other(kCount * kCount, 1);
    for (int64_t i = 0; i < kCount * kCount; ++i) {
      x.data()[i] = values[i / kCount];
      other.data()[i] = values[i % kCount];
    }
    const float w = 1.5F;
    for (const RowOperation& op : operations()) {
      if (op.name.starts_with("residual_mix"))
        continue;  // its squares overflow float32 but not the reference's float64
      if (op.name.ends_with("rms_norm")) continue;
      SCOPED_TRACE(op.name);
      Matrix y = poisoned(kCount * kCount, 1), expected = poisoned(kCount * kCount, 1);
      op.run(ops, x.view(), other.view(), &w, 1, y.view());
      op.run(reference, x.view(), other.view(), &w, 1, expected.view());
      for (int64_t i = 0; i < kCount * kCount; ++i) {
        const float a = y.data()[i], b = expected.data()[i];
        if (std::isnan(a) && std::isnan(b)) continue;
        // SiLU of -200 is zero in float32 and not in the reference's float64, so that infinity times it differs.
        if (x.data()[i] == -200 && std::isinf(other.data()[i])) continue;
        EXPECT_TRUE(a == b || std::fabs(a - b) <= 1e-2F * std::fabs(b) || std::fabs(a - b) < 1e-30F)
            << op.name << " of " << x.data()[i] << ", " << other.data()[i] << ": " << a << ", not " << b;
      }
    }
  });
}

}  // namespace
}  // namespace trireme::ops::test
