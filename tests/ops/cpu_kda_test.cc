// KDA of the CPU backends: against the reference, and bit for bit against itself over every cut of a sequence.
#include <numeric>

#include "ops/cpu_compare.h"

namespace trireme::ops::test {
namespace {

// ---- short convolution

struct ConvCase {
  int64_t channels;
  int64_t taps;
  std::vector<int64_t> rows;  // of each segment
};

TEST(CpuShortConv, EqualsTheReference) {
  const std::vector<ConvCase> cases = {{1, 4, {1}},     {16, 4, {1, 2, 3, 4}}, {17, 4, {5, 1, 130}}, {300, 4, {70}},
                                       {48, 2, {9, 1}}, {31, 7, {3, 20, 1}},   {520, 3, {1, 1}},     {24, 1, {4}}};
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const ConvCase& c : cases) {
      for (const bool with_state : {false, true}) {
        SCOPED_TRACE(testing::Message() << c.channels << " channels, " << c.taps << " taps, state " << with_state);
        const int64_t total = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
        Strided x(random_matrix(total, c.channels, 1, 1.0, ops.precision()));
        const std::vector<float> w = random_normal(c.channels * c.taps, 2);
        const int64_t floats = (c.taps - 1) * c.channels;
        const auto count = static_cast<int64_t>(c.rows.size());
        const std::vector<float> in = random_normal(count * floats + 1, 3, 1, 0, ops.precision());
        std::vector<float> out(in.size(), -1.0F), expected(in.size(), -1.0F);
        std::vector<ConvSegment> segments, reference_segments;
        int64_t row = 0;
        for (int64_t s = 0; s < count; ++s) {
          const int64_t n = c.rows[static_cast<size_t>(s)];
          const float* from = with_state ? in.data() + s * floats : nullptr;
          segments.push_back({row, n, from, out.data() + s * floats});
          reference_segments.push_back({row, n, from, expected.data() + s * floats});
          row += n;
        }
        Strided y(total, c.channels);
        Matrix y_expected = poisoned(total, c.channels);
        ops.short_conv({x.view(), w.data(), c.taps, segments, y.view()});
        reference.short_conv({x.view(), w.data(), c.taps, reference_segments, y_expected.view()});
        expect_close(y.dense(), y_expected, ops.precision());
        EXPECT_TRUE(y.margins_kept());
        EXPECT_TRUE(same_bits(out, expected));  // states are copies
      }
    }
  });
}

TEST(CpuShortConv, CutsDoNotChangeBits) {
  constexpr int64_t kRows = 70, kChannels = 37, kTaps = 4;
  for_each_cpu([&](const Ops& ops, const Ops&) {
    const Matrix x = random_matrix(kRows, kChannels, 1, 1.0, ops.precision());
    const std::vector<float> w = random_normal(kChannels * kTaps, 2);
    std::vector<float> last(3 * kChannels);
    Matrix whole = poisoned(kRows, kChannels);
    const ConvSegment all{0, kRows, nullptr, last.data()};
    ops.short_conv({x.view(), w.data(), kTaps, {&all, 1}, whole.view()});
    for (const int64_t step : {1, 2, 3, 7, 16, 64, 65}) {
      SCOPED_TRACE(step);
      Matrix pieces = poisoned(kRows, kChannels);
      std::vector<float> state(3 * kChannels);
      for (int64_t row = 0; row < kRows; row += step) {
        const int64_t n = std::min(step, kRows - row);
        const ConvSegment piece{0, n, state.data(), state.data()};  // in place
        ops.short_conv({x.view().row_range(row, n), w.data(), kTaps, {&piece, 1}, pieces.view().row_range(row, n)});
      }
      EXPECT_TRUE(same_bits(pieces, whole));
      EXPECT_TRUE(same_bits(state, last));
    }
  });
}

TEST(CpuShortConv, NoRowsKeepTheState) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    const std::vector<float> in = random_normal(3 * 8, 1), w = random_normal(4 * 8, 2);
    std::vector<float> out(in.size(), -1.0F);
    const ConvSegment none{0, 0, in.data(), out.data()};
    Matrix x(0, 8), y(0, 8);
    ops.short_conv({x.view(), w.data(), 4, {&none, 1}, y.view()});
    EXPECT_TRUE(same_bits(out, in));
  });
}

// ---- gate and normalisation

TEST(CpuKdaPrepare, EqualsTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const auto& [heads, dim] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 128}, {14, 128}, {5, 64}, {6, 32}, {3, 16}, {2, 24}, {2, 9}}) {
      for (const bool bounded : {true, false}) {
        SCOPED_TRACE(testing::Message() << heads << " heads of " << dim << ", bounded " << bounded);
        constexpr int64_t kRows = 5;
        const int64_t width = heads * dim;
        Matrix q = random_matrix(kRows, width, 1, 1.0, ops.precision()),
               k = random_matrix(kRows, width, 2, 1.0, ops.precision());
        std::fill_n(q.data(), dim, 0.0F);  // a head of zeros stays zero
        Matrix z = random_matrix(kRows, width, 3, 4.0, ops.precision());
        const float extremes[] = {1000, -1000, 100, -100, 30};
        std::copy(std::begin(extremes), std::end(extremes), z.view().row(1));
        const Matrix b = random_matrix(kRows, heads, 4, 3.0, ops.precision());
        const std::vector<float> a_log = random_uniform(heads, 5, -3, 3), dt_bias = random_uniform(width, 6, -6, 2);
        const KdaGate gate{a_log.data(), dt_bias.data(), bounded, -5.0F};
        Strided qs(q), ks(k), decay(kRows, width), beta(kRows, heads);
        Matrix q2 = q, k2 = k, decay2 = poisoned(kRows, width), beta2 = poisoned(kRows, heads);
        ops.kda_prepare({heads, dim, gate, qs.view(), ks.view(), z.view(), b.view(), decay.view(), beta.view()});
        reference.kda_prepare(
            {heads, dim, gate, q2.view(), k2.view(), z.view(), b.view(), decay2.view(), beta2.view()});
        // None of these is rounded in either precision.
        expect_close(qs.dense(), q2, Precision::f32);
        expect_close(ks.dense(), k2, Precision::f32);
        expect_close(beta.dense(), beta2, Precision::f32);
        const Matrix g = decay.dense();
        for (int64_t i = 0; i < kRows * width; ++i) {
          // The gate's argument x has three float32 roundings, and both gates pass its error on times |x| at most.
          const auto c = static_cast<size_t>(i % width);
          const double x = std::exp(bounded ? a_log[c / static_cast<size_t>(dim)] : 0.0) *
                           (z.data()[i] + static_cast<double>(dt_bias[c]));
          const double expected = decay2.data()[i];
          EXPECT_NEAR(g.data()[i], expected, std::fabs(expected) * (5e-7 + 2e-7 * std::fabs(x)) + 1e-37);
          EXPECT_LE(g.data()[i], 0.0F);
        }
        EXPECT_TRUE(qs.margins_kept() && ks.margins_kept() && decay.margins_kept() && beta.margins_kept());
      }
    }
  });
}

// ---- recurrence

struct KdaInputs {
  KdaInputs(int64_t rows, int64_t heads_, int64_t dim_, uint64_t seed, Precision precision)
      : heads(heads_),
        dim(dim_),
        q(random_matrix(rows, heads * dim, seed, 1 / static_cast<double>(dim))),
        k(random_matrix(rows, heads * dim, seed + 1, 1 / std::sqrt(static_cast<double>(dim)))),
        v(random_matrix(rows, heads * dim, seed + 2, 1.0, precision)),
        decay(rows, heads * dim),
        beta(rows, heads) {
    const std::vector<float> g = random_uniform(rows * heads * dim, seed + 3, 0, 1),
                             b = random_uniform(rows * heads, seed + 4, 0, 1);
    // Mostly slow decay, sometimes the strongest.
    for (size_t i = 0; i < g.size(); ++i) decay.data()[i] = -5 * g[i] * g[i] * g[i];
    std::copy(b.begin(), b.end(), beta.data());
  }

  KdaArgs args(Rows out, std::span<const KdaSegment> segments) const {
    return {heads, dim, q.view(), k.view(), v.view(), decay.view(), beta.view(), out, segments};
  }
  KdaArgs args(Rows out, std::span<const KdaSegment> segments, int64_t row, int64_t rows) const {
    return {heads,
            dim,
            q.view().row_range(row, rows),
            k.view().row_range(row, rows),
            v.view().row_range(row, rows),
            decay.view().row_range(row, rows),
            beta.view().row_range(row, rows),
            out,
            segments};
  }
  int64_t state() const { return heads * dim * dim; }

  int64_t heads, dim;
  Matrix q, k, v, decay, beta;
};

TEST(CpuKda, EqualsTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const auto& [heads, dim] : std::vector<std::pair<int64_t, int64_t>>{
             {2, 128}, {3, 64}, {4, 32}, {3, 16}, {2, 8}, {2, 24}, {1, 40}, {1, 100}, {2, 5}, {1, 72}}) {
      SCOPED_TRACE(testing::Message() << heads << " heads of " << dim);
      const int64_t rows[] = {1, 20, 0, 2, 33};
      const KdaInputs in(56, heads, dim, 7, ops.precision());
      const std::vector<float> initial = random_normal(5 * in.state(), 8, 0.3);
      std::vector<float> out_states(initial.size(), -1.0F), expected_states(initial.size(), -1.0F);
      std::vector<float> mid(static_cast<size_t>(in.state())), expected_mid = mid;
      const KdaCheckpoint checkpoint{17, mid.data()}, expected_checkpoint{17, expected_mid.data()};
      std::vector<KdaSegment> segments, expected_segments;
      int64_t row = 0;
      for (int64_t s = 0; s < 5; ++s) {
        const float* from = s == 1 ? nullptr : initial.data() + s * in.state();
        float* to = s == 3 ? nullptr : out_states.data() + s * in.state();
        float* expected_to = s == 3 ? nullptr : expected_states.data() + s * in.state();
        segments.push_back({row, rows[s], from, to, {}});
        expected_segments.push_back({row, rows[s], from, expected_to, {}});
        row += rows[s];
      }
      segments[4].checkpoints = {&checkpoint, 1};
      expected_segments[4].checkpoints = {&expected_checkpoint, 1};
      Strided out(56, heads * dim);
      Matrix expected = poisoned(56, heads * dim);
      ops.kda(in.args(out.view(), segments));
      reference.kda(in.args(expected.view(), expected_segments));
      expect_close(out.dense(), expected, ops.precision());
      EXPECT_LT(relative_error(out_states, expected_states), 2e-6);
      EXPECT_LT(relative_error(mid, expected_mid), 2e-6);
      EXPECT_TRUE(out.margins_kept());

      // The commit of accepted rows: only states, the same bits.
      std::vector<float> committed(initial.size(), -1.0F);
      for (size_t s = 0; s < 5; ++s) {
        if (segments[s].state_out != nullptr)
          segments[s].state_out = committed.data() + static_cast<int64_t>(s) * in.state();
      }
      ops.kda(in.args(Rows{}, segments));
      EXPECT_TRUE(same_bits(committed, out_states));
    }
  });
}

// Prefill at once, in pieces of any size, and token by token; with the state in place; from any checkpoint; on any
// number of threads.
TEST(CpuKda, CutsDoNotChangeBits) {
  constexpr int64_t kRows = 131;
  ThreadPool one(1);
  for_each_cpu([&](const Ops& ops, const Ops&) {
    for (const auto& [heads, dim] : std::vector<std::pair<int64_t, int64_t>>{{2, 128}, {3, 32}, {2, 24}}) {
      const KdaInputs in(kRows, heads, dim, 11, ops.precision());
      const std::vector<float> initial = random_normal(in.state(), 8, 0.3);
      std::vector<std::vector<float>> at(kRows + 1, std::vector<float>(initial.size()));
      std::vector<KdaCheckpoint> checkpoints;
      for (int64_t r = 1; r <= kRows; ++r) checkpoints.push_back({r, at[static_cast<size_t>(r)].data()});
      std::vector<float> last(initial.size());
      const KdaSegment all{0, kRows, initial.data(), last.data(), {}};
      Matrix whole = poisoned(kRows, heads * dim);
      ops.kda(in.args(whole.view(), {&all, 1}));

      Matrix again = poisoned(kRows, heads * dim);
      const KdaSegment checked{0, kRows, initial.data(), nullptr, checkpoints};
      make_ops(ops.name(), ops.precision(), one)->kda(in.args(again.view(), {&checked, 1}));
      EXPECT_TRUE(same_bits(again, whole));
      EXPECT_TRUE(same_bits(at[kRows], last));

      for (const int64_t step : {1, 7, 15, 16, 17, 63, 64, 65}) {
        SCOPED_TRACE(testing::Message() << "dim " << dim << " in pieces of " << step);
        std::vector<float> state = initial;
        Matrix pieces = poisoned(kRows, heads * dim);
        for (int64_t row = 0; row < kRows; row += step) {
          const int64_t n = std::min(step, kRows - row);
          const KdaSegment piece{0, n, state.data(), state.data(), {}};
          ops.kda(in.args(pieces.view().row_range(row, n), {&piece, 1}, row, n));
          ASSERT_TRUE(same_bits(state, at[static_cast<size_t>(row + n)]));
        }
        EXPECT_TRUE(same_bits(pieces, whole));
      }
      for (const int64_t from : {1, 16, 64, 130}) {  // a restored checkpoint goes on as if nothing had happened
        std::vector<float> state(initial.size());
        const KdaSegment rest{0, kRows - from, at[static_cast<size_t>(from)].data(), state.data(), {}};
        Matrix out = poisoned(kRows - from, heads * dim);
        ops.kda(in.args(out.view(), {&rest, 1}, from, kRows - from));
        EXPECT_TRUE(same_bits(out, rows_of(whole, from, kRows - from)));
        EXPECT_TRUE(same_bits(state, last));
      }
    }
  });
}

// Segments of one call do not know each other, even when one of them is broken.
TEST(CpuKda, SegmentsAreIndependent) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    KdaInputs in(40, 2, 32, 21, ops.precision());
    in.v.view().row(3)[0] = std::numeric_limits<float>::quiet_NaN();
    in.decay.view().row(4)[40] = -std::numeric_limits<float>::infinity();
    in.decay.view().row(5)[1] = -1000;
    std::vector<float> states(static_cast<size_t>(3 * in.state())), single(states.size());
    std::vector<KdaSegment> segments;
    const int64_t rows[] = {10, 1, 29};
    Matrix together = poisoned(40, 64), apart = poisoned(40, 64);
    int64_t row = 0;
    for (int64_t s = 0; s < 3; ++s) {
      segments.push_back({row, rows[s], nullptr, states.data() + s * in.state(), {}});
      const KdaSegment alone{0, rows[s], nullptr, single.data() + s * in.state(), {}};
      ops.kda(in.args(apart.view().row_range(row, rows[s]), {&alone, 1}, row, rows[s]));
      row += rows[s];
    }
    ops.kda(in.args(together.view(), segments));
    EXPECT_TRUE(same_bits(together, apart));
    EXPECT_TRUE(same_bits(states, single));
    for (int64_t r = 10; r < 40; ++r) {
      for (int64_t c = 0; c < 64; ++c) ASSERT_FALSE(std::isnan(together.view().row(r)[c]));
    }
    EXPECT_TRUE(std::isnan(together.view().row(9)[0]));
  });
}

}  // namespace
}  // namespace trireme::ops::test
