#include "layout/chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "checkpoint/catalogue.h"
#include "layout/configs.h"

namespace trireme::layout {
namespace {

using testing::ModelConfig;

const std::vector<int64_t> kPublished = {7, 5, 7, 5, 7, 5, 7, 5, 7, 5, 7, 5, 7, 5, 6, 3};

TEST(ChunkCost, CountsK3) {
  const auto costs = chunk_costs(testing::k3(), kPublished);
  const auto expect = [&](size_t stage, double giga, double expand, double pair) {
    EXPECT_NEAR(costs[stage].token / 1e9, giga, 0.0005) << stage;
    EXPECT_EQ(costs[stage].expand, expand) << stage;
    EXPECT_EQ(costs[stage].pair, pair) << stage;
  };
  expect(0, 15.912, 25165824, 61440);
  expect(2, 15.895, 25165824, 61440);
  expect(1, 10.762, 50331648, 122880);
  expect(14, 13.559, 25165824, 61440);
  expect(15, 6.089, 50331648, 122880);
}

// The parameters that a token meets, counted from the catalogue instead.
TEST(ChunkCost, AgreesWithTheCatalogue) {
  testing::Rng rng(11);
  for (int round = 0; round < 40; ++round) {
    const ModelConfig config = testing::random_config(rng);
    double parameters = 0;
    double state = 0;
    double expand = 0;
    for (const auto& entry : checkpoint::catalogue(config)) {
      const bool of_moe = entry.group == checkpoint::Group::router || entry.group == checkpoint::Group::latent;
      if (entry.layer < 0 || entry.group == checkpoint::Group::norms) continue;
      if (entry.shape.size() != 2 && !of_moe) continue;
      const auto elements = static_cast<double>(entry.elements());
      if (entry.name.ends_with("kv_b_proj")) {
        expand += 2 * elements;
      } else if (entry.group == checkpoint::Group::experts) {
        parameters += elements * static_cast<double>(config.moe.top_k) / static_cast<double>(config.moe.experts);
      } else {
        parameters += elements;
      }
      if (entry.name.ends_with("k_proj") && entry.group == checkpoint::Group::kda) {
        const auto dim = static_cast<double>(config.kda.dim);
        state += static_cast<double>(config.kda.heads) * (6 * dim * dim + 256 * dim);
      }
    }
    const ChunkCost cost = chunk_cost(config, 0, config.layers);
    EXPECT_NEAR(cost.token, 2 * parameters + state, 1e-6 * cost.token);
    EXPECT_EQ(cost.expand, expand);
  }
}

TEST(ChunkSizer, GivesThePublishedSizesForK3) {
  const ChunkSizer sizer(chunk_costs(testing::k3(), kPublished), 16384);
  EXPECT_NEAR(sizer.budget() / 1e12, 269.360, 0.0005);
  const std::vector<int64_t> prefixes = {0, 16384, 32768, 65536, 131072, 262144, 524288, 1044480};
  const std::vector<int64_t> right = {16384, 15440, 14595, 13144, 9553, 5904, 3220, 1556};
  std::vector<int64_t> sizes;
  for (const int64_t prefix : prefixes) sizes.push_back(static_cast<int64_t>(sizer.exact(prefix) + 1e-6));
  EXPECT_EQ(sizes, right);
}

TEST(ChunkSizer, SolvesTheCostOfTheDearestStage) {
  const auto costs = chunk_costs(testing::k3(), kPublished);
  const ChunkSizer sizer(costs, 16384);
  for (const int64_t prefix : {0, 1000, 74000, 500000}) {
    const double x = sizer.exact(prefix);
    double dearest = 0;
    for (const ChunkCost& cost : costs) dearest = std::max(dearest, cost.at(static_cast<double>(prefix), x));
    EXPECT_NEAR(dearest / sizer.budget(), 1, 1e-9);
  }
}

TEST(ChunkSizer, RoundsAndTakesWhatIsLeft) {
  const auto costs = chunk_costs(testing::k3(), kPublished);
  const ChunkSizer sizer(costs, 16384, 256);
  EXPECT_EQ(sizer.next_chunk(0, 1000000), 16384);
  EXPECT_EQ(sizer.next_chunk(16384, 1000000), 15360);  // 15440 down to 256s
  EXPECT_EQ(ChunkSizer(costs, 16384, 64).next_chunk(16384, 1000000), 15424);
  EXPECT_EQ(sizer.next_chunk(16384, 15440), 15440);  // the rest fits: no rounding
  EXPECT_EQ(sizer.next_chunk(16384, 15441), 15360);
  EXPECT_EQ(sizer.next_chunk(0, 17), 17);
  EXPECT_EQ(sizer.next_chunk(1044480, 4096), 2048);  // 1556 is under the floor of 16384 / 8
  EXPECT_EQ(sizer.next_chunk(1044480, 1700), 1700);
  EXPECT_EQ(sizer.next_chunk(int64_t{1} << 40, 4096), 2048);  // the prefix alone is over the budget
  EXPECT_EQ(sizer.next_chunk(0, 0), 0);
  const ChunkSizer tiny(costs, 10, 64);  // a chunk of less than a grain
  EXPECT_EQ(tiny.next_chunk(0, 100), 10);
  EXPECT_EQ(tiny.next_chunk(50000, 100), 10);
}

TEST(ChunkSizer, NeverGrowsWithThePrefixAndEndsEveryPrompt) {
  testing::Rng rng(5);
  for (int round = 0; round < 30; ++round) {
    const ModelConfig config = testing::random_config(rng);
    const auto pipeline = default_partition(config, testing::pick(rng, 1, config.layers));
    const int64_t chunk = testing::pick(rng, 1, 700);
    const ChunkSizer sizer(chunk_costs(config, pipeline), chunk, testing::pick(rng, 1, 100));
    const int64_t length = 5000;
    int64_t last = chunk;
    for (int64_t at = 0; at < length;) {
      const int64_t size = sizer.next_chunk(at, length - at);
      ASSERT_GE(size, 1);
      ASSERT_LE(size, chunk);
      if (size < length - at) {
        ASSERT_LE(size, last);
      }
      last = size;
      at += size;
    }
  }
}

TEST(ChunkSizer, RefusesNothingToSize) {
  EXPECT_THROW(ChunkSizer({}, 64), BadInput);
  EXPECT_THROW(ChunkSizer({ChunkCost{1, 0, 0}}, 0), BadInput);
  EXPECT_THROW(ChunkSizer({ChunkCost{1, 0, 0}}, 64, 0), BadInput);
}

double dearest_stage(const ModelConfig& config, const std::vector<int64_t>& pipeline, double chunk) {
  double dearest = 0;
  for (const ChunkCost& cost : chunk_costs(config, pipeline)) {
    dearest = std::max(dearest, cost.at(static_cast<double>(kReferencePrefix), chunk));
  }
  return dearest;
}

TEST(DefaultPartition, IsNoDearerThanAnyOther) {
  testing::Rng rng(3);
  for (int round = 0; round < 25; ++round) {
    const ModelConfig config = testing::random_config(rng);
    for (int64_t stages = 1; stages <= config.layers; ++stages) {
      const auto pipeline = default_partition(config, stages, 512);
      ASSERT_EQ(std::ssize(pipeline), stages);
      ASSERT_EQ(std::accumulate(pipeline.begin(), pipeline.end(), int64_t{0}), config.layers);
      ASSERT_GE(*std::min_element(pipeline.begin(), pipeline.end()), 1);
      const double ours = dearest_stage(config, pipeline, 512);
      std::vector<int64_t> other;
      const std::function<void(int64_t)> try_all = [&](int64_t left) {
        if (std::ssize(other) == stages - 1) {
          other.push_back(left);
          EXPECT_LE(ours, dearest_stage(config, other, 512) * (1 + 1e-12));
          other.pop_back();
          return;
        }
        for (int64_t n = 1; left - n >= stages - 1 - std::ssize(other); ++n) {
          other.push_back(n);
          try_all(left - n);
          other.pop_back();
        }
      };
      try_all(config.layers);
    }
  }
}

TEST(DefaultPartition, TakesTheEarlierCutAmongEquals) {
  ModelConfig config = testing::small();
  config.first_dense = 0;
  config.kinds.assign(13, testing::LayerKind::kda);
  EXPECT_EQ(default_partition(config, 4), (std::vector<int64_t>{3, 3, 3, 4}));
  EXPECT_EQ(default_partition(config, 1), (std::vector<int64_t>{13}));
  EXPECT_EQ(default_partition(config, 13), std::vector<int64_t>(13, 1));
}

TEST(DefaultPartition, IsAsGoodAsThePublishedOneForK3) {
  const ModelConfig config = testing::k3();
  const auto pipeline = default_partition(config, 16, 16384);
  EXPECT_LE(dearest_stage(config, pipeline, 16384), dearest_stage(config, kPublished, 16384));
  EXPECT_THROW(default_partition(config, 0), BadInput);
  EXPECT_THROW(default_partition(config, 94), BadInput);
}

}  // namespace
}  // namespace trireme::layout
