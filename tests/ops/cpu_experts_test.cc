// Router and routed experts of the CPU backends against the reference.
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "ops/cpu/expert_groups.h"
#include "ops_compare.h"

namespace trireme::ops::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- route

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const Ops& ops, const Matrix& logits, const float* bias, int64_t top_k, bool renormalize, float scaling) {
  const auto count = static_cast<size_t>(logits.rows() * top_k);
  Routed r{std::vector<int32_t>(count, -1), std::vector<float>(count, kNan)};
  ops.route({logits.view(), bias, top_k, renormalize, scaling, r.ids.data(), r.weights.data()});
  return r;
}

void expect_same_route(const Matrix& logits, const float* bias, int64_t top_k, bool renormalize, float scaling) {
  ThreadPool pool(2);
  const auto reference = make_ops("reference", Precision::f32, pool);
  const Routed expected = route(*reference, logits, bias, top_k, renormalize, scaling);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      const Routed got = route(ops, logits, bias, top_k, renormalize, scaling);
      EXPECT_EQ(got.ids, expected.ids);
      for (size_t i = 0; i < got.weights.size(); ++i) {
        if (std::isnan(expected.weights[i])) {
          EXPECT_TRUE(std::isnan(got.weights[i])) << i;
        } else {
          EXPECT_NEAR(got.weights[i], expected.weights[i], 1e-6 * std::fabs(expected.weights[i]) + 1e-30) << i;
        }
      }
    });
  }
}

TEST(CpuRoute, RandomRows) {
  for (const auto& [experts, top_k] : {std::pair<int64_t, int64_t>{12, 3}, {128, 8}, {129, 8}, {7, 7}, {1, 1}}) {
    const Matrix logits = random_matrix(33, experts, static_cast<uint64_t>(experts), 2);
    const std::vector<float> bias = random_uniform(experts, 8, -0.3, 0.3);
    for (const bool renormalize : {true, false}) {
      expect_same_route(logits, bias.data(), top_k, renormalize, 2.5F);
      expect_same_route(logits, nullptr, top_k, renormalize, 1.0F);
    }
  }
}

TEST(CpuRoute, EqualsGoToTheLowestExpertAndNanLast) {
  Matrix logits(4, 9);
  for (int64_t e = 0; e < 9; ++e) {
    logits.view().row(0)[e] = 0.5F;                       // all equal
    logits.view().row(1)[e] = e % 2 == 0 ? 1.0F : -1.0F;  // two classes of equals
    logits.view().row(2)[e] = e < 7 ? kNan : 0.25F;       // NaN has to be taken
    logits.view().row(3)[e] = e == 4 ? kNan : 0.1F * static_cast<float>(e);
  }
  expect_same_route(logits, nullptr, 4, true, 1.0F);
  expect_same_route(logits, nullptr, 9, true, 1.0F);
}

// ---- experts

struct Layer {
  std::vector<StoredWeight> gate, up, down;

  std::vector<Expert> packed(const Ops& ops) const {
    std::vector<Expert> experts(gate.size());
    for (size_t e = 0; e < gate.size(); ++e) experts[e] = {pack(ops, gate[e]), pack(ops, up[e]), pack(ops, down[e])};
    return experts;
  }
};

Layer random_layer(WeightFormat format, uint64_t experts, int64_t in, int64_t inter) {
  Layer layer;
  for (uint64_t e = 0; e < experts; ++e) {
    layer.gate.push_back(random_weight(format, inter, in, e * 3 + 1, 2));
    layer.up.push_back(random_weight(format, inter, in, e * 3 + 2, 2));
    layer.down.push_back(random_weight(format, in, inter, e * 3 + 3));
  }
  return layer;
}

// Distinct experts for each row; expert 0 gets far more than its share, so groups are of many sizes.
std::vector<int32_t> choices(int64_t rows, int64_t experts, int64_t top_k) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    std::set<int32_t> taken;
    for (uint64_t i = 0; static_cast<int64_t>(taken.size()) < top_k; ++i) {
      const auto id = static_cast<int32_t>(mix64(static_cast<uint64_t>(t) * 100 + i) % static_cast<uint64_t>(experts));
      const int32_t chosen = i == 0 && t % 3 != 2 ? 0 : id;
      if (taken.insert(chosen).second) ids.push_back(chosen);
    }
  }
  return ids;
}

Matrix run(const Ops& ops, const std::vector<Expert>& experts, ConstRows z, const int32_t* ids, const float* weights,
           int64_t top_k, Glu::Kind kind) {
  Matrix y = poisoned(z.rows, z.cols);
  ops.experts({z, ids, weights, top_k, experts, Glu{kind, 4.0F, 25.0F}, y.view()});
  return y;
}

void check_layer(WeightFormat format, int64_t in, int64_t inter, Precision precision, Glu::Kind kind) {
  SCOPED_TRACE(std::string(weight_format_name(format)));
  constexpr int64_t kExperts = 12, kTopK = 3, kRows = 70;
  const Layer layer = random_layer(format, kExperts, in, inter);
  const Matrix z = random_matrix(kRows, in, 77, 1, precision);
  const std::vector<int32_t> ids = choices(kRows, kExperts, kTopK);
  const std::vector<float> weights = random_uniform(kRows * kTopK, 3, 0.05, 1);
  ThreadPool pool(2);
  const auto reference = make_ops("reference", precision, pool);
  const Matrix expected = run(*reference, layer.packed(*reference), z.view(), ids.data(), weights.data(), kTopK, kind);
  for_each_isa(precision, [&](const Ops& ops) {
    const std::vector<Expert> experts = layer.packed(ops);
    const Matrix y = run(ops, experts, z.view(), ids.data(), weights.data(), kTopK, kind);
    EXPECT_LT(relative_error(y, expected), precision == Precision::bf16 ? 4e-3 : 2e-6);
    for (const int64_t rows : {0, 1, 2, 5, 13}) {
      for (const int64_t begin : {int64_t{0}, kRows - rows}) {
        const Matrix part = run(ops, experts, z.view().row_range(begin, rows), ids.data() + begin * kTopK,
                                weights.data() + begin * kTopK, kTopK, kind);
        for (int64_t t = 0; t < rows; ++t) {
          ASSERT_EQ(std::memcmp(part.view().row(t), y.view().row(begin + t), static_cast<size_t>(in) * 4), 0)
              << rows << " rows from " << begin << ", row " << t;
        }
      }
    }
    for (const int threads : {1, 7}) {  // 7: more threads than experts for small batches
      ThreadPool other(threads);
      const auto same = make_ops(ops.name(), precision, other);
      EXPECT_TRUE(same_bits(run(*same, experts, z.view(), ids.data(), weights.data(), kTopK, kind), y)) << threads;
      const Matrix one = run(*same, experts, z.view().row_range(0, 1), ids.data(), weights.data(), kTopK, kind);
      EXPECT_EQ(std::memcmp(one.data(), y.data(), static_cast<size_t>(in) * 4), 0) << threads;
    }
  });
}

TEST(CpuExperts, Mxfp4) {
  for (const Precision p : {Precision::f32, Precision::bf16})
    check_layer(WeightFormat::mxfp4, 96, 160, p, Glu::Kind::situ);
}

TEST(CpuExperts, Fp8WithRaggedBlocks) {
  for (const Precision p : {Precision::f32, Precision::bf16})
    check_layer(WeightFormat::fp8_block, 192, 130, p, Glu::Kind::situ);
}

TEST(CpuExperts, Bf16AndF32WithRaggedShapes) {
  for (const Precision p : {Precision::f32, Precision::bf16}) {
    check_layer(WeightFormat::bf16, 33, 17, p, Glu::Kind::swiglu);
    check_layer(WeightFormat::f32, 65, 70, p, Glu::Kind::swiglu);
  }
}

TEST(CpuExperts, MatricesOfOneExpertMayDifferInFormat) {
  ThreadPool pool(9);
  for (const std::string_view isa : available_isas()) {
    const auto ops = make_ops(isa, Precision::bf16, pool);
    Layer layer = random_layer(WeightFormat::bf16, 2, 64, 160);
    for (StoredWeight& w : layer.gate) w = random_weight(WeightFormat::f32, 160, 64, 5);
    const std::vector<Expert> experts = layer.packed(*ops);
    const Matrix z = random_matrix(3, 64, 1, 1, Precision::bf16);
    const std::vector<int32_t> ids = {0, 1, 1};
    const std::vector<float> weights = {1, 1, 0.5F};
    ThreadPool single(1);
    const auto alone = make_ops(isa, Precision::bf16, single);
    EXPECT_TRUE(same_bits(run(*ops, experts, z.view(), ids.data(), weights.data(), 1, Glu::Kind::situ),
                          run(*alone, experts, z.view(), ids.data(), weights.data(), 1, Glu::Kind::situ)));
  }
}

TEST(CpuExperts, NanStaysInItsRow) {
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    const std::vector<Expert> experts = random_layer(WeightFormat::mxfp4, 4, 64, 32).packed(ops);
    Matrix z = random_matrix(6, 64, 2, 1, Precision::bf16);
    const std::vector<int32_t> ids = {0, 1, 0, 1, 0, 1, 2, 3, 0, 3, 1, 0};
    const std::vector<float> weights(12, 0.5F);
    const Matrix clean = run(ops, experts, z.view(), ids.data(), weights.data(), 2, Glu::Kind::situ);
    z.view().row(2)[10] = kNan;
    const Matrix y = run(ops, experts, z.view(), ids.data(), weights.data(), 2, Glu::Kind::situ);
    for (int64_t t = 0; t < 6; ++t) {
      if (t == 2) {
        EXPECT_TRUE(std::isnan(y.view().row(t)[0]));
      } else {
        EXPECT_EQ(std::memcmp(y.view().row(t), clean.view().row(t), 64 * 4), 0) << t;
      }
    }
  });
}

TEST(ExpertGroups, HoldEachPairOnceAndLargestFirst) {
  const std::vector<int32_t> ids = {3, 1, 3, 0, 3, 1};
  cpu::ExpertGroups groups;
  cpu::group_by_expert(ids.data(), 6, 5, groups);
  ASSERT_EQ(groups.groups.size(), 3U);
  EXPECT_EQ(groups.groups[0].expert, 3);
  EXPECT_EQ(groups.groups[1].expert, 1);
  EXPECT_EQ(groups.groups[2].expert, 0);
  EXPECT_EQ(groups.slots, (std::vector<int64_t>{3, 1, 5, 0, 2, 4}));
  EXPECT_EQ(groups.groups[0].begin, 3);
  EXPECT_EQ(groups.groups[0].count, 3);
}

}  // namespace
}  // namespace trireme::ops::test
