// The KDA recurrence against its chunk-parallel form, and what its contract promises about states, cuts and batches.
#include <gtest/gtest.h>

#include "ops/ops_compare.h"
#include "ops/reference/kda_chunk.h"

namespace trireme::ops::test {
namespace {

constexpr int64_t kHeads = 3;
constexpr int64_t kDim = 16;
constexpr int64_t kWidth = kHeads * kDim;
constexpr int64_t kState = kHeads * kDim * kDim;

// Inputs as kda_prepare leaves them, with decays over the whole range of the bounded gate.
struct Inputs {
  explicit Inputs(int64_t rows, uint64_t seed = 1)
      : q(random_matrix(rows, kWidth, seed)),
        k(random_matrix(rows, kWidth, seed + 1)),
        v(random_matrix(rows, kWidth, seed + 2)),
        z(random_matrix(rows, kWidth, seed + 3)),
        b(random_matrix(rows, kHeads, seed + 4)),
        decay(rows, kWidth),
        beta(rows, kHeads) {}

  void prepare(const Ops& ops) {
    const std::vector<float> a_log = {-0.7F, 0.4F, 2.0F};
    const std::vector<float> dt_bias = random_uniform(kWidth, 9, -4, 1);
    const KdaGate gate{a_log.data(), dt_bias.data(), true, -5.0F};
    ops.kda_prepare({kHeads, kDim, gate, q.view(), k.view(), z.view(), b.view(), decay.view(), beta.view()});
  }

  KdaArgs args(Rows out, std::span<const KdaSegment> segments) const {
    return {kHeads, kDim, q.view(), k.view(), v.view(), decay.view(), beta.view(), out, segments};
  }

  Matrix q, k, v, z, b, decay, beta;
};

TEST(ReferenceKda, ChunkFormEqualsRecurrence) {
  for (const int64_t rows : {1, 2, 15, 16, 17, 63, 64, 65, 100}) {
    for (const int64_t chunk : {1, 7, 16, 64}) {
      SCOPED_TRACE(testing::Message() << rows << " rows in chunks of " << chunk);
      for_each_isa(Precision::f32, [&](const Ops& ops) {
        Inputs in(rows);
        in.prepare(ops);
        const std::vector<float> initial = random_normal(kState, 20);
        std::vector<float> serial(kState), chunked(kState);
        std::vector<float> serial_mid(kState), chunked_mid(kState), serial_last(kState), chunked_last(kState);
        const int64_t middle = (rows + 1) / 2;
        const KdaCheckpoint of_serial[] = {{middle, serial_mid.data()}, {rows, serial_last.data()}};
        const KdaCheckpoint of_chunked[] = {{middle, chunked_mid.data()}, {rows, chunked_last.data()}};
        const KdaSegment a{0, rows, initial.data(), serial.data(), of_serial};
        const KdaSegment b{0, rows, initial.data(), chunked.data(), of_chunked};
        Matrix out = poisoned(rows, kWidth);
        Matrix out_chunked = poisoned(rows, kWidth);
        ops.kda(in.args(out.view(), {&a, 1}));
        reference::kda_chunked(in.args(out_chunked.view(), {&b, 1}), chunk);
        EXPECT_LT(relative_error(out, out_chunked), 3e-6);
        EXPECT_LT(relative_error(serial, chunked), 3e-6);
        EXPECT_LT(relative_error(serial_mid, chunked_mid), 3e-6);
        EXPECT_TRUE(same_bits(serial, serial_last));
        EXPECT_TRUE(same_bits(chunked, chunked_last));
      });
    }
  }
}

// At the strongest decay everywhere, G reaches -5 * rows: exp(-G) overflows float32 after 18 rows, float64 after 142.
TEST(ReferenceKda, ChunkFormSurvivesTheStrongestDecay) {
  constexpr int64_t kRows = 200;
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Inputs in(kRows);
    in.prepare(ops);
    std::fill_n(in.decay.data(), kRows * kWidth, -5.0F);
    Matrix out = poisoned(kRows, kWidth);
    Matrix out_chunked = poisoned(kRows, kWidth);
    std::vector<float> state(kState), state_chunked(kState);
    const KdaSegment a{0, kRows, nullptr, state.data(), {}};
    const KdaSegment b{0, kRows, nullptr, state_chunked.data(), {}};
    ops.kda(in.args(out.view(), {&a, 1}));
    reference::kda_chunked(in.args(out_chunked.view(), {&b, 1}), kRows);
    EXPECT_LT(relative_error(out, out_chunked), 3e-6);
    EXPECT_LT(relative_error(state, state_chunked), 3e-6);
  });
}

// However a sequence is cut, and with a neighbour in the batch, every output and state has the same bits.
TEST(ReferenceKda, CutsAndNeighboursDoNotChangeBits) {
  constexpr int64_t kRows = 70;
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      Inputs in(kRows);
      in.prepare(ops);
      Matrix whole = poisoned(kRows, kWidth);
      std::vector<float> end(kState);
      const KdaSegment all{0, kRows, nullptr, end.data(), {}};
      ops.kda(in.args(whole.view(), {&all, 1}));
      for (const int64_t cut : {1, 15, 16, 17, 32, 63, 64, 65, 69}) {
        SCOPED_TRACE(cut);
        Matrix pieces = poisoned(kRows, kWidth);
        std::vector<float> state(kState), neighbour(kState, 0.5F), checkpoint(kState);
        const KdaCheckpoint at{cut, checkpoint.data()};
        const KdaSegment first{0, cut, nullptr, state.data(), {}};
        ops.kda(in.args(pieces.view(), {&first, 1}));
        const std::vector<float> boundary = state;
        const KdaSegment second{cut, kRows - cut, state.data(), state.data(), {}};  // in place
        ops.kda(in.args(pieces.view(), {&second, 1}));
        EXPECT_TRUE(same_bits(pieces, whole));
        EXPECT_TRUE(same_bits(state, end));

        Matrix batched = poisoned(kRows, kWidth);
        const KdaSegment two[] = {{0, cut, nullptr, nullptr, {&at, 1}},
                                  {cut, kRows - cut, neighbour.data(), nullptr, {}}};
        ops.kda(in.args(batched.view(), two));
        EXPECT_TRUE(same_bits(span_of(batched).first(static_cast<size_t>(cut * kWidth)),
                              span_of(whole).first(static_cast<size_t>(cut * kWidth))));
        EXPECT_TRUE(same_bits(checkpoint, boundary));
      }
    });
  }
}

// Without an output the states are the same; a segment of no rows hands its state through.
TEST(ReferenceKda, StatesWithoutOutputs) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Inputs in(9);
    in.prepare(ops);
    const std::vector<float> initial = random_normal(kState, 3);
    std::vector<float> with(kState), without(kState, 7), empty(kState, 7), zero(kState, 7);
    Matrix out = poisoned(9, kWidth);
    const KdaSegment a{0, 9, initial.data(), with.data(), {}};
    const KdaSegment b[] = {{0, 9, initial.data(), without.data(), {}},
                            {9, 0, initial.data(), empty.data(), {}},
                            {9, 0, nullptr, zero.data(), {}}};
    ops.kda(in.args(out.view(), {&a, 1}));
    ops.kda(in.args({}, b));
    EXPECT_TRUE(same_bits(with, without));
    EXPECT_TRUE(same_bits(initial, empty));
    EXPECT_TRUE(same_bits(std::vector<float>(kState), zero));
  });
}

TEST(ReferenceKda, NanStaysInItsRowAndSequence) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Inputs in(8);
    in.prepare(ops);
    Matrix clean = poisoned(8, kWidth);
    const KdaSegment segments[] = {{0, 4, nullptr, nullptr, {}}, {4, 4, nullptr, nullptr, {}}};
    ops.kda(in.args(clean.view(), segments));
    in.v.data()[2 * kWidth + 5] = std::numeric_limits<float>::quiet_NaN();
    Matrix dirty = poisoned(8, kWidth);
    ops.kda(in.args(dirty.view(), segments));
    for (int64_t t = 0; t < 8; ++t) {
      for (int64_t c = 0; c < kWidth; ++c) {
        const bool poisonous = t >= 2 && t < 4 && c == 5;
        EXPECT_EQ(std::isnan(dirty.view().row(t)[c]), poisonous) << t << "," << c;
        if (!poisonous) {
          EXPECT_EQ(dirty.view().row(t)[c], clean.view().row(t)[c]) << t << "," << c;
        }
      }
    }
  });
}

TEST(ReferenceKda, PrepareMatchesItsFormula) {
  for (const bool bounded : {true, false}) {
    SCOPED_TRACE(bounded ? "bounded" : "softplus");
    for_each_isa(Precision::f32, [&](const Ops& ops) {
      Inputs in(5);
      // A zero head, a tiny one and extreme gates.
      std::fill_n(in.q.data(), kDim, 0.0F);
      std::fill_n(in.k.data() + kDim, kDim, 1e-4F);
      in.z.data()[0] = 200;
      in.z.data()[1] = -200;
      const Inputs raw = in;
      const std::vector<float> a_log = {-0.7F, 0.4F, 2.0F};
      const std::vector<float> dt_bias = random_uniform(kWidth, 9, -4, 1);
      const KdaGate gate{a_log.data(), dt_bias.data(), bounded, -5.0F};
      ops.kda_prepare(
          {kHeads, kDim, gate, in.q.view(), in.k.view(), in.z.view(), in.b.view(), in.decay.view(), in.beta.view()});
      Matrix q(5, kWidth), k(5, kWidth), g(5, kWidth), beta(5, kHeads);
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t c = 0; c < kWidth; ++c) {
          const int64_t h = c / kDim;
          double qq = 1e-6, kk = 1e-6;
          for (int64_t d = h * kDim; d < (h + 1) * kDim; ++d) {
            qq += std::pow(static_cast<double>(raw.q.view().row(t)[d]), 2);
            kk += std::pow(static_cast<double>(raw.k.view().row(t)[d]), 2);
          }
          q.view().row(t)[c] = static_cast<float>(raw.q.view().row(t)[c] / std::sqrt(qq) / 4);
          k.view().row(t)[c] = static_cast<float>(raw.k.view().row(t)[c] / std::sqrt(kk));
          const double a = std::exp(static_cast<double>(a_log[static_cast<size_t>(h)]));
          const double x = static_cast<double>(raw.z.view().row(t)[c]) + dt_bias[static_cast<size_t>(c)];
          const double soft = x > 30 ? x : std::log1p(std::exp(x));
          g.view().row(t)[c] = static_cast<float>(bounded ? -5 / (1 + std::exp(-a * x)) : -a * soft);
        }
        for (int64_t h = 0; h < kHeads; ++h)
          beta.view().row(t)[h] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(raw.b.view().row(t)[h]))));
      }
      EXPECT_LT(relative_error(in.q, q), 1e-6);
      EXPECT_LT(relative_error(in.k, k), 1e-6);
      EXPECT_LT(relative_error(in.decay, g), 1e-6);
      EXPECT_LT(relative_error(in.beta, beta), 1e-6);
    });
  }
}

TEST(ReferenceKda, ConvolutionCutsDoNotChangeBits) {
  constexpr int64_t kRows = 9;
  const Matrix x = random_matrix(kRows, kWidth, 5);
  const std::vector<float> w = random_normal(kWidth * 4, 6, 0.5);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      Matrix whole = poisoned(kRows, kWidth);
      std::vector<float> end(3 * kWidth, 7);
      const ConvSegment all{0, kRows, nullptr, end.data()};
      ops.short_conv({x.view(), w.data(), 4, {&all, 1}, whole.view()});
      // The state is the last three inputs, oldest first.
      EXPECT_TRUE(same_bits(end, span_of(x).subspan(6 * kWidth)));
      for (int64_t cut = 0; cut <= kRows; ++cut) {
        SCOPED_TRACE(cut);
        Matrix pieces = poisoned(kRows, kWidth);
        std::vector<float> state(3 * kWidth, 7);
        const ConvSegment first{0, cut, nullptr, state.data()};
        ops.short_conv({x.view().row_range(0, cut), w.data(), 4, {&first, 1}, pieces.view().row_range(0, cut)});
        const ConvSegment second{0, kRows - cut, state.data(), state.data()};
        ops.short_conv({x.view().row_range(cut, kRows - cut),
                        w.data(),
                        4,
                        {&second, 1},
                        pieces.view().row_range(cut, kRows - cut)});
        EXPECT_TRUE(same_bits(pieces, whole));
        EXPECT_TRUE(same_bits(state, end));
      }
    });
  }
}

}  // namespace
}  // namespace trireme::ops::test
