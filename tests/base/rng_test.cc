#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trireme {
namespace {

// The first outputs of the published SplitMix64 generator with seed 0: its n-th output mixes n times the golden gamma.
TEST(Rng, Mix64MatchesSplitMix64) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ULL;
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(mix64(kGamma), 0x6e789e6aa1b965f4ULL);
  EXPECT_EQ(mix64(2 * kGamma), 0x06c45d188009454fULL);
}

TEST(Rng, UniformIsAPureFunctionWithinBounds) {
  static_assert(uniform_at(1, 2, 3) == uniform_at(1, 2, 3));
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = uniform_at(i * i, i, ~i);
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(2, 2, 3));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 3, 3));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 2, 4));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 3, 2));
}

// Chi-square over 64 cells along each address, and over pairs of neighbours in 8 x 8 cells; 99.9th percentile of 63
// degrees: 103.4.
TEST(Rng, Uniformity) {
  constexpr uint64_t kDraws = 64000;
  const auto chi_square = [&](auto&& cell) {
    std::vector<int> count(64);
    for (uint64_t i = 0; i < kDraws; ++i) ++count[cell(i)];
    double chi = 0;
    for (const int c : count) chi += std::pow(c - 1000.0, 2) / 1000.0;
    return chi;
  };
  const auto bin = [](double u, int cells) { return static_cast<size_t>(u * cells); };
  EXPECT_LT(chi_square([&](uint64_t i) { return bin(uniform_at(i, 0, 0), 64); }), 103.4);
  EXPECT_LT(chi_square([&](uint64_t i) { return bin(uniform_at(7, i, 0), 64); }), 103.4);
  EXPECT_LT(chi_square([&](uint64_t i) { return bin(uniform_at(7, 0, i), 64); }), 103.4);
  EXPECT_LT(chi_square([&](uint64_t i) { return 8 * bin(uniform_at(7, i, 0), 8) + bin(uniform_at(7, i + 1, 0), 8); }),
            103.4);
  EXPECT_LT(chi_square([&](uint64_t i) { return 8 * bin(uniform_at(i, 5, 0), 8) + bin(uniform_at(i, 5, 1), 8); }),
            103.4);
}

}  // namespace
}  // namespace trireme
