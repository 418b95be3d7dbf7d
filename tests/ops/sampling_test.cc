#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Row = std::vector<float>;

Row logs(std::initializer_list<double> probabilities) {
  Row row;
  for (const double p : probabilities) row.push_back(static_cast<float>(std::log(p)));
  return row;
}

std::vector<int32_t> tokens_of(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> tokens;
  for (const Candidate& c : candidates) tokens.push_back(c.token);
  return tokens;
}

using Ids = std::vector<int32_t>;

TEST(Sampling, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(greedy(Row{1, 3, 3, 2}), 1);
  EXPECT_EQ(greedy(Row{-kInf, -5, -kInf}), 1);
  EXPECT_EQ(greedy(Row{0, kInf, 5, kInf}), 1);
  EXPECT_EQ(greedy(Row{-0.0F, 0.0F}), 0);
  EXPECT_EQ(greedy(Row{7}), 0);
}

TEST(Sampling, UnusableRowsGiveNothing) {
  for (const Row& row : {Row{1, kNan, 2}, Row{-kInf, -kInf}, Row{kInf, -kInf}, Row{}}) {
    EXPECT_FALSE(usable(row));
    EXPECT_FALSE(greedy(row).has_value());
    EXPECT_TRUE(distribution(row, {}).empty());
    EXPECT_TRUE(std::isnan(log_sum_exp(row)));
  }
}

TEST(Sampling, DistributionIsTheSoftmax) {
  const std::vector<Candidate> d = distribution(logs({0.1, 0.2, 0.3, 0.4}), {});
  ASSERT_EQ(tokens_of(d), (Ids{0, 1, 2, 3}));
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(d[i].probability, 0.1 * static_cast<double>(i + 1), 1e-7);
  const std::vector<Candidate> hot = distribution(logs({0.1, 0.4}), {.temperature = 2});
  EXPECT_NEAR(hot[1].probability, 2.0 / 3, 1e-7);
}

TEST(Sampling, TopK) {
  const Row row = logs({0.1, 0.2, 0.2, 0.2, 0.3});
  EXPECT_EQ(tokens_of(distribution(row, {.top_k = 1})), (Ids{4}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_k = 2})), (Ids{1, 4}));  // the lowest of three equals
  EXPECT_EQ(tokens_of(distribution(row, {.top_k = 3})), (Ids{1, 2, 4}));
  EXPECT_EQ(distribution(row, {.top_k = 5}).size(), 5U);
  EXPECT_EQ(distribution(row, {.top_k = 1000}).size(), 5U);
  EXPECT_EQ(distribution(row, {.top_k = 0}).size(), 5U);
  EXPECT_NEAR(distribution(row, {.top_k = 2})[1].probability, 0.6, 1e-6);
}

TEST(Sampling, TopP) {
  const Row row = logs({0.1, 0.2, 0.3, 0.4});
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 1e-30F})), (Ids{3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0})), (Ids{3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.39F})), (Ids{3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.41F})), (Ids{2, 3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.69F})), (Ids{2, 3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.71F})), (Ids{1, 2, 3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.999F})), (Ids{0, 1, 2, 3}));
  // Equals: the lowest first.
  EXPECT_EQ(tokens_of(distribution(Row{0, 0, 0, 0}, {.top_p = 0.5F})), (Ids{0, 1}));
}

// top_p is a share of what top_k left: of 0.4 and 0.3 the first has 0.571.
TEST(Sampling, FiltersRunInOrder) {
  const Row row = logs({0.1, 0.2, 0.3, 0.4});
  EXPECT_EQ(tokens_of(distribution(row, {.top_k = 2, .top_p = 0.55F})), (Ids{3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.55F})), (Ids{2, 3}));
  EXPECT_EQ(tokens_of(distribution(row, {.min_p = 0.6F})), (Ids{2, 3}));
  EXPECT_EQ(tokens_of(distribution(row, {.top_p = 0.8F, .min_p = 0.6F})), (Ids{2, 3}));
  EXPECT_EQ(tokens_of(distribution(row, {.min_p = 1})), (Ids{3}));
  // Temperature comes first: hot enough, everything is within min_p.
  EXPECT_EQ(distribution(row, {.temperature = 100, .min_p = 0.9F}).size(), 4U);
}

TEST(Sampling, HostileRows) {
  EXPECT_EQ(tokens_of(distribution(Row{3}, {.temperature = 1e-30F, .top_k = 50, .top_p = 0.1F, .min_p = 1})), (Ids{0}));
  EXPECT_EQ(tokens_of(distribution(Row{1, 2, -kInf}, {.temperature = 1e-38F})), (Ids{1}));
  EXPECT_EQ(distribution(Row{1, 2, -kInf}, {.temperature = kInf}).size(), 2U);
  const std::vector<Candidate> infinite = distribution(Row{1, kInf, kInf}, {});
  ASSERT_EQ(tokens_of(infinite), (Ids{1, 2}));
  EXPECT_EQ(infinite[0].probability, 0.5);
  const std::vector<Candidate> huge = distribution(Row{3e38F, -3e38F, 3e38F}, {});
  EXPECT_EQ(tokens_of(huge), (Ids{0, 2}));
}

TEST(Sampling, PickWalksTheCumulatedProbabilities) {
  const std::vector<Candidate> d = {{2, 0.25}, {5, 0.5}, {9, 0.25}};
  EXPECT_EQ(pick(d, 0.0), 2);
  EXPECT_EQ(pick(d, 0.2499), 2);
  EXPECT_EQ(pick(d, 0.25), 5);
  EXPECT_EQ(pick(d, 0.75), 9);
  EXPECT_EQ(pick(d, std::nextafter(1.0, 0.0)), 9);
  const std::vector<Candidate> thirds = {{0, 1.0 / 3}, {1, 1.0 / 3}, {2, 1.0 / 3 - 1e-15}};
  EXPECT_EQ(pick(thirds, std::nextafter(1.0, 0.0)), 2);
}

// Chi-square of 100,000 draws with a fixed seed against the filtered distribution: 99.9th percentiles of 9 and 3
// degrees of freedom.
TEST(Sampling, DrawsFollowTheDistribution) {
  Row row;
  for (int i = 0; i < 10; ++i) row.push_back(static_cast<float>(2 * uniform_at(3, static_cast<uint64_t>(i), 0)));
  const auto chi_square = [&](const Filters& filters) {
    const std::vector<Candidate> d = distribution(row, filters);
    std::map<int32_t, int> count;
    constexpr int kDraws = 100000;
    for (int i = 0; i < kDraws; ++i) ++count[pick(d, uniform_at(11, static_cast<uint64_t>(i), 0))];
    double chi = 0;
    int seen = 0;
    for (const Candidate& c : d) {
      const double expected = kDraws * c.probability;
      chi += std::pow(count[c.token] - expected, 2) / expected;
      seen += count[c.token];
    }
    EXPECT_EQ(seen, kDraws);
    return chi;
  };
  EXPECT_LT(chi_square({}), 27.88);
  EXPECT_LT(chi_square({.temperature = 0.5F, .top_k = 4}), 16.27);
}

TEST(Sampling, Penalties) {
  const Row before = {2, -2, 3, 4, -kInf};
  Row row = before;
  const Ids prompt = {0, 1, 1};
  const Ids output = {2, 2, 4};
  penalize(row, prompt, output, {});
  EXPECT_EQ(row, before);
  penalize(row, prompt, output, {.repetition = 2});
  EXPECT_EQ(row, (Row{1, -4, 1.5F, 4, -kInf}));  // once a token, however often it occurs
  row = before;
  penalize(row, prompt, output, {.presence = 0.5F, .frequency = 0.25F});
  EXPECT_EQ(row, (Row{2, -2, 2, 4, -kInf}));  // the output only: 3 - 2 * 0.25 - 0.5
  row = before;
  penalize(row, prompt, output, {.repetition = 2, .presence = 0.5F});
  EXPECT_EQ(row, (Row{1, -4, 1, 4, -kInf}));  // repetition first
}

TEST(Sampling, BiasAndMask) {
  Row row = {1, 2, 3};
  const std::vector<std::pair<int32_t, float>> bias = {{0, 5}, {2, -100}, {0, 1}};
  add_bias(row, bias);
  EXPECT_EQ(row, (Row{7, 2, -97}));
  mask(row, Ids{0});
  EXPECT_EQ(greedy(row), 1);
  for (const int32_t token : {-1, 3}) {
    const std::vector<std::pair<int32_t, float>> outside = {{token, 1}};
    EXPECT_THROW(add_bias(row, outside), BadInput);
    EXPECT_THROW(mask(row, Ids{token}), BadInput);
    EXPECT_THROW(penalize(row, Ids{token}, {}, {.repetition = 2}), BadInput);
  }
}

TEST(Sampling, LogProbabilities) {
  const Row row = logs({0.1, 0.2, 0.7});
  EXPECT_NEAR(log_sum_exp(row), 0, 1e-7);
  Row shifted = row;
  for (float& v : shifted) v += 1000;
  EXPECT_NEAR(log_sum_exp(shifted), 1000, 1e-4);
  EXPECT_NEAR(log_sum_exp(Row{-3e38F, -3e38F}), -3e38, 1e32);
  EXPECT_EQ(log_sum_exp(Row{kInf, 0}), kInf);
  EXPECT_EQ(log_sum_exp(Row{-kInf, 0}), 0);
  EXPECT_EQ(largest(Row{1, 3, 2, 3}, 3), (Ids{1, 3, 2}));
  EXPECT_EQ(largest(Row{1, 3}, 9), (Ids{1, 0}));
  EXPECT_TRUE(largest(row, 0).empty());
  EXPECT_TRUE(largest(row, -1).empty());
}

}  // namespace
}  // namespace trireme::ops
