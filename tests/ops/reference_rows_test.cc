// Products, embeddings, router, experts, rotary positions and draft attention against formulas written here again, and
// the rules that ops.h states for all operations.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "ops/ops_compare.h"

namespace trireme::ops::test {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::fp8_block,
                                     WeightFormat::mxfp4};

TEST(ReferenceLinear, EveryFormatMatchesItsElements) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(weight_format_name(format)));
    constexpr int64_t kRows = 150;  // two ragged fp8 blocks
    constexpr int64_t kCols = 192;
    const StoredWeight w = random_weight(format, kRows, kCols, 7);
    const Matrix x = random_matrix(3, kCols, 8);
    Matrix want(3, kRows);
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t r = 0; r < kRows; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < kCols; ++c) sum += static_cast<double>(weight_at(w.view(), r, c)) * x.view().row(t)[c];
        want.view().row(t)[r] = static_cast<float>(sum);
      }
    }
    // The data is not degenerate: products have a deviation near 1.
    EXPECT_NEAR(std::sqrt(std::inner_product(want.data(), want.data() + 3 * kRows, want.data(), 0.0) / (3 * kRows)), 1,
                0.6);
    for_each_isa(Precision::f32, [&](const Ops& ops) {
      Matrix y = poisoned(3, kRows);
      ops.linear(x.view(), pack(ops, w), y.view());
      EXPECT_LT(relative_error(y, want), 1e-6);
      // Strided in and out.
      Matrix wide_x = random_matrix(3, kCols + 5, 1);
      Matrix wide_y = poisoned(3, kRows + 3);
      for (int64_t t = 0; t < 3; ++t) std::copy_n(x.view().row(t), kCols, wide_x.view().row(t) + 2);
      ops.linear(wide_x.view().columns(2, kCols), pack(ops, w), wide_y.view().columns(1, kRows));
      for (int64_t t = 0; t < 3; ++t) {
        EXPECT_TRUE(same_bits({wide_y.view().row(t) + 1, static_cast<size_t>(kRows)},
                              {y.view().row(t), static_cast<size_t>(kRows)}));
        EXPECT_TRUE(std::isnan(wide_y.view().row(t)[0]) && std::isnan(wide_y.view().row(t)[kRows + 1]));
      }
    });
  }
}

TEST(ReferenceLinear, Bf16RoundsUnlessToldNotTo) {
  const StoredWeight w = random_weight(WeightFormat::bf16, 40, 64, 7);
  const Matrix x = random_matrix(2, 64, 8, 1, Precision::bf16);
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    Matrix rounded = poisoned(2, 40);
    Matrix kept = poisoned(2, 40);
    ops.linear(x.view(), pack(ops, w), rounded.view());
    ops.linear(x.view(), pack(ops, w), kept.view(), Output::f32);
    int64_t differ = 0;
    for (int64_t i = 0; i < 80; ++i) {
      EXPECT_EQ(rounded.data()[i], round_to_bf16(rounded.data()[i]));
      EXPECT_NEAR(rounded.data()[i], kept.data()[i], std::fabs(kept.data()[i]) / 128);
      differ += rounded.data()[i] != kept.data()[i];
    }
    EXPECT_GT(differ, 40);
  });
}

TEST(ReferenceLinear, ARowDoesNotDependOnItsBatch) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(weight_format_name(format)));
    const StoredWeight w = random_weight(format, 100, 128, 9);
    for_each_isa(Precision::f32, [&](const Ops& ops) {
      const PackedMatrix packed = pack(ops, w);
      const Matrix x = random_matrix(37, 128, 10);
      Matrix together = poisoned(37, 100);
      ops.linear(x.view(), packed, together.view());
      for (const int64_t t : {0, 1, 17, 36}) {
        Matrix alone = poisoned(1, 100);
        ops.linear(x.view().row_range(t, 1), packed, alone.view());
        EXPECT_TRUE(same_bits(span_of(alone), {together.view().row(t), 100})) << "row " << t;
      }
    });
  }
}

TEST(ReferenceLinear, NoRowsIsLegal) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    // Neither is read or written: there is no input, and what lies at the output stays.
    const Matrix poison = poisoned(1, 64);
    Matrix y = poisoned(1, 64);
    ops.linear({nullptr, 0, 64, 64}, pack(ops, random_weight(WeightFormat::bf16, 8, 64, 1)), {y.data(), 0, 8, 8});
    ops.rms_norm({nullptr, 0, 64, 64}, nullptr, 1e-5F, {y.data(), 0, 64, 64});
    EXPECT_TRUE(same_bits(span_of(y), span_of(poison)));
  });
}

TEST(ReferenceEmbed, GathersRows) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16}) {
    const StoredWeight w = random_weight(format, 11, 20, 3);
    EmbeddingTable table{format, 11, 20, Buffer(weight_bytes(format, 11, 20))};
    std::memcpy(table.storage.data(), w.data.data(), w.data.size());
    const std::vector<int32_t> tokens = {10, 0, 3, 3};
    for_each_isa(Precision::f32, [&](const Ops& ops) {
      Matrix y = poisoned(4, 20);
      ops.embed(tokens, table, y.view());
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t d = 0; d < 20; ++d)
          EXPECT_EQ(y.view().row(t)[d], weight_at(w.view(), tokens[static_cast<size_t>(t)], d));
      }
    });
  }
}

TEST(ReferenceNorms, RmsNormRoundsInsideAndOutside) {
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    // mean(x^2) is 1 up to eps: the normalised values are x less a hair and round back to x, then times w.
    Matrix x(1, 4);
    std::fill_n(x.data(), 4, 1.0F);
    const std::vector<float> w = {1.0F, 1.0078125F, 3.0F, 0.1F};
    Matrix y = poisoned(1, 4);
    ops.rms_norm(x.view(), w.data(), 1e-5F, y.view());
    for (size_t d = 0; d < 4; ++d) EXPECT_EQ(y.data()[d], round_to_bf16(w[d]));
  });
}

TEST(ReferenceNorms, InPlaceAndStrided) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      const std::vector<float> w = random_normal(48, 2, 0.2, 1, precision);
      const Matrix x = random_matrix(3, 48, 3, 2, precision);
      const Matrix gate = random_matrix(3, 48, 4, 2, precision);
      const auto same = [&](auto&& call) {
        Matrix apart = poisoned(3, 48);
        call(x.view(), apart.view());
        Matrix in_place = x;
        call(ConstRows(in_place.view()), in_place.view());
        EXPECT_TRUE(same_bits(apart, in_place));
      };
      same([&](ConstRows in, Rows out) { ops.rms_norm(in, w.data(), 1e-5F, out); });
      same([&](ConstRows in, Rows out) { ops.sigmoid_gate(in, gate.view(), out); });
      same([&](ConstRows in, Rows out) { ops.gated_rms_norm(in, w.data(), gate.view(), 16, 1e-5F, out); });
      same([&](ConstRows in, Rows out) { ops.add(in, gate.view(), out); });
      same([&](ConstRows in, Rows out) { ops.add(gate.view(), in, out); });
      same([&](ConstRows in, Rows out) { ops.glu(in, gate.view(), {}, out); });
      same([&](ConstRows in, Rows out) { ops.glu(gate.view(), in, {}, out); });
    });
  }
}

TEST(ReferenceNorms, GatesSaturate) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const float big[] = {1000, -1000, 1000, -1000, 88, -88, 0, 1e30F};
    const float up[] = {1000, 1000, -1000, -1000, 3, 3, 3, 1e30F};
    Matrix out = poisoned(1, 8);
    ops.glu({big, 1, 8, 8}, {up, 1, 8, 8}, {Glu::Kind::situ, 4, 25}, out.view());
    const double capped = 4 * 25 * std::tanh(3.0 / 25);
    const double want[] = {100, 0, -100, 0, capped, 0, 0, 100};
    for (int i = 0; i < 8; ++i) EXPECT_NEAR(out.data()[i], want[i], 1e-4) << i;
    ops.sigmoid_gate({up, 1, 8, 8}, {big, 1, 8, 8}, out.view());
    EXPECT_EQ(out.data()[0], 1000);
    EXPECT_EQ(out.data()[1], 0);
  });
}

TEST(ReferenceRouter, TiesAndNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Matrix logits(4, 5);
  const float values[] = {0, 1, 1, 0, 1, nan, 2, nan, 1, 0, nan, nan, nan, nan, nan, -inf, inf, -inf, 0, -inf};
  std::copy(std::begin(values), std::end(values), logits.data());
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    std::vector<int32_t> ids(16, -1);
    std::vector<float> weights(16);
    ops.route({logits.view(), nullptr, 4, true, 1.0F, ids.data(), weights.data()});
    EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 4, 0, 1, 3, 4, 0, 0, 1, 2, 3, 1, 3, 0, 2}));
    EXPECT_FLOAT_EQ(std::accumulate(weights.begin(), weights.begin() + 4, 0.0F), 1.0F);
    EXPECT_TRUE(std::isnan(weights[4]));  // a NaN expert had to be chosen: the sum is NaN
    EXPECT_FLOAT_EQ(weights[12], 1.0F / 1.5F);
    EXPECT_EQ(weights[14], 0.0F);
  });
}

// Without renormalisation, with every score at zero, and scaled.
TEST(ReferenceRouter, WeightsFollowTheirFormula) {
  const float inf = std::numeric_limits<float>::infinity();
  Matrix logits(2, 3);
  const float values[] = {0, 1, 2, -inf, -inf, -inf};
  std::copy(std::begin(values), std::end(values), logits.data());
  const float bias[] = {5, 0, 1};
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    std::vector<int32_t> ids(4, -1);
    std::vector<float> weights(4);
    ops.route({logits.view(), bias, 2, false, 2.5F, ids.data(), weights.data()});
    EXPECT_EQ(ids, (std::vector<int32_t>{0, 2, 0, 2}));
    EXPECT_FLOAT_EQ(weights[0], 1.25F);
    EXPECT_FLOAT_EQ(weights[1], 2.5F / (1 + std::exp(-2.0F)));
    ops.route({logits.view(), bias, 2, true, 2.5F, ids.data(), weights.data()});
    EXPECT_EQ(weights[2], 0);  // 0 / (0 + 1e-20)
  });
}

TEST(ReferenceExperts, ComposeOfLinearAndGlu) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      constexpr int64_t kTokens = 7;
      const Matrix z = random_matrix(kTokens, 64, 1, 1, precision);
      std::vector<Expert> experts;
      for (uint64_t e = 0; e < 5; ++e) {
        experts.push_back({pack(ops, random_weight(WeightFormat::mxfp4, 96, 64, 10 * e, 2)),
                           pack(ops, random_weight(WeightFormat::mxfp4, 96, 64, 10 * e + 1, 2)),
                           pack(ops, random_weight(WeightFormat::mxfp4, 64, 96, 10 * e + 2))});
      }
      std::vector<int32_t> ids;
      std::vector<float> weights;
      for (int32_t t = 0; t < kTokens; ++t) {
        for (const int32_t e : {t % 5, (t + 3) % 5}) ids.push_back(e);
        for (const float w : {0.7F, 0.3F + 0.1F * static_cast<float>(t)}) weights.push_back(w);
      }
      Matrix y = poisoned(kTokens, 64);
      ops.experts({z.view(), ids.data(), weights.data(), 2, experts, {}, y.view()});
      Matrix want(kTokens, 64);
      for (int64_t t = 0; t < kTokens; ++t) {
        Matrix products = poisoned(2, 64);
        for (int64_t j = 0; j < 2; ++j) {
          const Expert& e = experts[static_cast<size_t>(ids[static_cast<size_t>(2 * t + j)])];
          Matrix gate = poisoned(1, 96);
          Matrix up = poisoned(1, 96);
          ops.linear(z.view().row_range(t, 1), e.gate, gate.view());
          ops.linear(z.view().row_range(t, 1), e.up, up.view());
          ops.glu(gate.view(), up.view(), {}, gate.view());
          ops.linear(gate.view(), e.down, products.view().row_range(j, 1));
        }
        for (int64_t d = 0; d < 64; ++d) {
          const double sum = static_cast<double>(weights[static_cast<size_t>(2 * t)]) * products.view().row(0)[d] +
                             static_cast<double>(weights[static_cast<size_t>(2 * t + 1)]) * products.view().row(1)[d];
          const auto single = static_cast<float>(sum);
          want.view().row(t)[d] = precision == Precision::bf16 ? round_to_bf16(single) : single;
        }
      }
      EXPECT_LT(relative_error(y, want), precision == Precision::bf16 ? 1e-3 : 1e-6);
    });
  }
}

TEST(ReferenceDraft, RopeTurnsPairs) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    constexpr int64_t kDim = 8;
    const Matrix x = random_matrix(3, 2 * kDim, 1);
    Matrix y = x;
    const std::vector<int64_t> positions = {0, 1, 1000000};
    ops.rope({y.view(), kDim, 10000.0, positions});
    EXPECT_TRUE(same_bits({x.data(), 2 * kDim}, {y.data(), 2 * kDim}));
    for (int64_t t = 1; t < 3; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t j = 0; j < kDim / 2; ++j) {
          const double angle =
              static_cast<double>(positions[static_cast<size_t>(t)]) * std::pow(10000.0, -static_cast<double>(j) / 4);
          const float* in = x.view().row(t) + h * kDim;
          const float* out = y.view().row(t) + h * kDim;
          EXPECT_NEAR(out[j], in[j] * std::cos(angle) - in[j + 4] * std::sin(angle), 2e-6);
          EXPECT_NEAR(out[j + 4], in[j + 4] * std::cos(angle) + in[j] * std::sin(angle), 2e-6);
        }
      }
    }
  });
}

// Values are one-hot by row, so the output shows the weights: who is seen, and how much.
TEST(ReferenceDraft, AttentionSeesItsWindowAndTheWholeBlock) {
  constexpr int64_t kDim = 16;
  constexpr int64_t kContext = 10;
  constexpr int64_t kBlock = 4;
  const Matrix q = random_matrix(kBlock, 4 * kDim, 1);
  const Matrix context_k = random_matrix(kContext, 2 * kDim, 2);
  const Matrix block_k = random_matrix(kBlock, 2 * kDim, 3);
  Matrix context_v(kContext, 2 * kDim);
  Matrix block_v(kBlock, 2 * kDim);
  for (int64_t i = 0; i < kContext; ++i) context_v.view().row(i)[i] = context_v.view().row(i)[kDim + i] = 1;
  for (int64_t i = 0; i < kBlock; ++i)
    block_v.view().row(i)[kContext + i] = block_v.view().row(i)[kDim + kContext + i] = 1;
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    for (const int64_t window : {1, 6, 8, 1000}) {
      Matrix out = poisoned(kBlock, 4 * kDim);
      ops.draft_attention({4, 2, kDim, 0.25F, window, 100, 110, q.view(), context_k.view(), context_v.view(),
                           block_k.view(), block_v.view(), out.view()});
      for (int64_t r = 0; r < kBlock; ++r) {
        for (int64_t h = 0; h < 4; ++h) {
          double p[kContext + kBlock] = {};
          double sum = 0;
          for (int64_t i = 0; i < kContext + kBlock; ++i) {
            if (i < kContext && 100 + i <= 110 + r - window) continue;
            const float* k = i < kContext ? context_k.view().row(i) : block_k.view().row(i - kContext);
            double s = 0;
            for (int64_t d = 0; d < kDim; ++d)
              s += static_cast<double>(q.view().row(r)[h * kDim + d]) * k[h / 2 * kDim + d];
            sum += p[i] = std::exp(0.25 * s);
          }
          for (int64_t i = 0; i < kContext + kBlock; ++i)
            EXPECT_NEAR(out.view().row(r)[h * kDim + i], p[i] / sum, 1e-6) << i;
        }
      }
    }
  });
}

TEST(SelectOps, NamesWhatWouldWork) {
  ThreadPool pool(1);
  EXPECT_EQ(available_isas().back(), "reference");
  EXPECT_EQ(make_ops("auto", Precision::f32, pool)->name(), available_isas().front());
  for (const std::string_view isa : available_isas()) EXPECT_EQ(make_ops(isa, Precision::bf16, pool)->name(), isa);
  try {
    make_ops("sse9", Precision::f32, pool);
    FAIL() << "sse9 was accepted";
  } catch (const BadInput& e) {
    EXPECT_NE(std::string(e.what()).find("sse9"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("reference"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme::ops::test
