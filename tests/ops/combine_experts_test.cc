// Summing the products of experts that were computed elsewhere gives what `experts` gives for all pairs at once.
#include <string>
#include <vector>

#include "ops/ops_compare.h"

namespace trireme::ops::test {
namespace {

constexpr int64_t kExperts = 9;
constexpr int64_t kIn = 96;
constexpr int64_t kInter = 64;
constexpr int64_t kTokens = 21;

std::vector<Expert> random_experts(const Ops& ops, WeightFormat format) {
  std::vector<Expert> experts;
  for (uint64_t e = 0; e < kExperts; ++e) {
    experts.push_back({pack(ops, random_weight(format, kInter, kIn, e * 3 + 1, 2)),
                       pack(ops, random_weight(format, kInter, kIn, e * 3 + 2, 2)),
                       pack(ops, random_weight(format, kIn, kInter, e * 3 + 3))});
  }
  return experts;
}

std::vector<int32_t> random_ids(int64_t count, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(mix64(seed + static_cast<uint64_t>(i)) % kExperts));
  return ids;
}

// The pairs of a few ranks: rank r has the experts e with e % ranks == r, and computes the products of its pairs alone.
Matrix products_by_rank(const Ops& ops, const std::vector<Expert>& experts, const Matrix& z,
                        const std::vector<int32_t>& ids, int64_t top_k, int32_t ranks) {
  Matrix y = poisoned(static_cast<int64_t>(ids.size()), kIn);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> pairs;
    std::vector<int32_t> own;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] % ranks != rank) continue;
      pairs.push_back(static_cast<int64_t>(i));
      own.push_back(ids[i]);
    }
    const auto count = static_cast<int64_t>(pairs.size());
    Matrix rows(count, kIn);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(z.view().row(pairs[static_cast<size_t>(i)] / top_k), kIn, rows.view().row(i));
    }
    const std::vector<float> ones(own.size(), 1.0F);
    Matrix part = poisoned(count, kIn);
    ops.experts({rows.view(), own.data(), ones.data(), 1, experts, {}, part.view()});
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(part.view().row(i), kIn, y.view().row(pairs[static_cast<size_t>(i)]));
    }
  }
  return y;
}

TEST(CombineExperts, GivesTheBitsOfExperts) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const WeightFormat format :
           {WeightFormat::bf16, WeightFormat::mxfp4, WeightFormat::fp8_block, WeightFormat::f32}) {
        const std::vector<Expert> experts = random_experts(ops, format);
        const Matrix z = random_matrix(kTokens, kIn, 5, 1, precision);
        for (int64_t top_k = 1; top_k <= 8; ++top_k) {
          SCOPED_TRACE(testing::Message() << weight_format_name(format) << ", top_k " << top_k);
          const std::vector<int32_t> ids = random_ids(kTokens * top_k, static_cast<uint64_t>(top_k) * 1000);
          const std::vector<float> weights = random_uniform(kTokens * top_k, 6, -0.2, 1);
          Matrix at_once = poisoned(kTokens, kIn);
          ops.experts({z.view(), ids.data(), weights.data(), top_k, experts, {}, at_once.view()});
          for (const int32_t ranks : {1, 3}) {
            const Matrix products = products_by_rank(ops, experts, z, ids, top_k, ranks);
            Matrix combined = poisoned(kTokens, kIn);
            ops.combine_experts({products.view(), weights.data(), top_k, combined.view()});
            ASSERT_TRUE(same_bits(combined, at_once)) << ranks << " ranks";
          }
        }
      }
    });
  }
}

TEST(CombineExperts, IsItsFormulaAndRoundsOnce) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      const Matrix y = random_matrix(3 * 5, 37, 1);
      const std::vector<float> weights = random_uniform(15, 2, 0, 1);
      Matrix wide = poisoned(3, 40);
      ops.combine_experts({y.view(), weights.data(), 5, wide.view().columns(1, 37)});
      for (int64_t t = 0; t < 3; ++t) {
        EXPECT_TRUE(std::isnan(wide.view().row(t)[0]) && std::isnan(wide.view().row(t)[38]));
        for (int64_t d = 0; d < 37; ++d) {
          double sum = 0;
          for (int64_t i = t * 5; i < t * 5 + 5; ++i)
            sum += static_cast<double>(weights[static_cast<size_t>(i)]) * y.view().row(i)[d];
          const float got = wide.view().row(t)[d + 1];
          EXPECT_NEAR(got, sum, precision == Precision::bf16 ? std::fabs(sum) / 250 + 1e-6 : 1e-6);
          if (precision == Precision::bf16) {
            EXPECT_EQ(got, round_to_bf16(got));
          }
        }
      }
    });
  }
}

TEST(CombineExperts, NanStaysInItsRowAndNoRowsAreLegal) {
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    Matrix y = random_matrix(6, 20, 1, 1, Precision::bf16);
    const std::vector<float> weights(6, 0.5F);
    Matrix clean = poisoned(3, 20);
    ops.combine_experts({y.view(), weights.data(), 2, clean.view()});
    y.view().row(3)[7] = std::numeric_limits<float>::quiet_NaN();
    Matrix out = poisoned(3, 20);
    ops.combine_experts({y.view(), weights.data(), 2, out.view()});
    for (int64_t i = 0; i < 60; ++i) {
      if (i == 27) {
        EXPECT_TRUE(std::isnan(out.data()[i]));
      } else {
        EXPECT_EQ(out.data()[i], clean.data()[i]) << i;
      }
    }
    ops.combine_experts({{nullptr, 0, 20, 20}, nullptr, 2, {nullptr, 0, 20, 20}});
  });
}

}  // namespace
}  // namespace trireme::ops::test
