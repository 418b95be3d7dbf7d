#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "engine/speculation.h"

namespace trireme::engine {
namespace {

constexpr int64_t kVocab = 16;

std::vector<float> row(uint64_t seed) {
  std::vector<float> logits;
  for (uint64_t i = 0; i < kVocab; ++i) logits.push_back(static_cast<float>(uniform_at(seed, i, 3) * 6 - 3));
  return logits;
}

SamplingParams params(float temperature = 1) {
  SamplingParams p;
  p.temperature = temperature;
  p.max_tokens = 1000;
  return p;
}

int32_t draw(std::vector<float> logits, const SamplingParams& p, std::vector<int32_t> tokens = {1},
             int64_t prompt = 1) {
  const auto split = static_cast<size_t>(prompt);
  const auto token = sample(logits, p, static_cast<int64_t>(tokens.size()) - prompt, std::span(tokens).first(split),
                            std::span(tokens).subspan(split));
  EXPECT_TRUE(token);
  return token ? token->token : -1;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) { EXPECT_EQ(draw({0, 3, 1, 3}, params(0)), 1); }

TEST(Sampler, BiasAndPenaltiesChangeTheChoice) {
  SamplingParams p = params(0);
  p.logit_bias = {{2, 5.0F}};
  EXPECT_EQ(draw({0, 3, 1, 2}, p), 2);
  p = params(0);
  p.presence_penalty = 1.5F;
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {1}), 1);     // a prompt token is not punished
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {0, 1}), 3);  // an output token is
  p = params(0);
  p.frequency_penalty = 0.6F;
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {0, 1}), 1);
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {0, 1, 1}), 3);
  p = params(0);
  p.repetition_penalty = 2;
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {1}), 3);  // of the prompt too
}

TEST(Sampler, StopIdsAreMaskedBeforeMinTokens) {
  SamplingParams p = params(0);
  p.stop_ids = {1};
  p.min_tokens = 3;
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {0, 0}), 3);     // the second token
  EXPECT_EQ(draw({0, 3, 1, 2}, p, {0, 0, 0}), 1);  // the third may stop
  EXPECT_EQ(finish_after(p, 1, 2), std::nullopt);
  EXPECT_EQ(finish_after(p, 1, 3), FinishReason::stop);
  EXPECT_EQ(finish_after(p, 2, 1000), FinishReason::length);
  EXPECT_EQ(finish_after(p, 1, 1000), FinishReason::stop);
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  const auto logits = row(1);
  SamplingParams p = params(0.8F);
  std::vector<double> want;
  for (const float l : logits) want.push_back(std::exp(static_cast<double>(l) / 0.8));
  const double sum = std::accumulate(want.begin(), want.end(), 0.0);
  std::vector<int64_t> seen(kVocab);
  constexpr int64_t kDraws = 40000;
  for (int64_t i = 0; i < kDraws; ++i) {
    p.seed = static_cast<uint64_t>(i);
    ++seen[static_cast<size_t>(draw(logits, p))];
  }
  double chi = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double expected = want[i] / sum * kDraws;
    chi += (static_cast<double>(seen[i]) - expected) * (static_cast<double>(seen[i]) - expected) / expected;
  }
  EXPECT_LT(chi, 37.7);  // 15 degrees of freedom, one in a thousand
}

TEST(Sampler, RandomNumbersBelongToSeedAndPosition) {
  SamplingParams p = params(5);
  const auto logits = row(2);
  std::vector<int32_t> first, again, other;
  for (int64_t n = 0; n < 20; ++n) {
    const std::vector<int32_t> tokens(static_cast<size_t>(3 + n), 1);
    p.seed = 7;
    first.push_back(draw(logits, p, tokens, 3));
    again.push_back(
        draw(logits, p, std::vector<int32_t>(static_cast<size_t>(1 + n), 2), 1));  // another prompt, same position
    p.seed = 8;
    other.push_back(draw(logits, p, tokens, 3));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(Sampler, LogprobsAreOfTheRawRow) {
  auto logits = row(3);
  const auto raw = logits;
  double sum = 0;
  for (const float l : raw) sum += std::exp(static_cast<double>(l));
  SamplingParams p = params(0);
  p.logit_bias = {{4, 100.0F}};
  p.top_logprobs = 2;
  const auto token = sample(logits, p, 0, {}, {});
  ASSERT_TRUE(token);
  EXPECT_EQ(token->token, 4);
  EXPECT_NEAR(token->logprob, static_cast<double>(raw[4]) - std::log(sum), 1e-5);
  ASSERT_EQ(token->top.size(), 2U);
  EXPECT_EQ(token->top[0].token, std::max_element(raw.begin(), raw.end()) - raw.begin());
  EXPECT_GT(token->top[0].logprob, token->top[1].logprob);
}

TEST(Sampler, BrokenLogitsGiveNoToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    for (const int32_t logprobs : {-1, 3}) {
      SamplingParams p = params(temperature);
      p.top_logprobs = logprobs;
      std::vector<float> logits{1, nan, 2};
      EXPECT_FALSE(sample(logits, p, 0, {}, {}));
    }
  }
}

TEST(Sampler, RefusesEveryBadField) {
  const auto refused = [](const std::function<void(SamplingParams&)>& change) {
    SamplingParams p = params();
    change(p);
    try {
      check_sampling(p, kVocab);
    } catch (const BadInput& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto names = [&](const std::string& name, const std::function<void(SamplingParams&)>& change) {
    const std::string said = refused(change);
    EXPECT_TRUE(said.starts_with(name)) << name << ": " << said;
  };
  for (const float bad : {-0.1F, nan, inf}) names("temperature is", [&](auto& p) { p.temperature = bad; });
  for (const float bad : {0.0F, -0.1F, 1.1F, nan}) names("top_p is", [&](auto& p) { p.top_p = bad; });
  names("top_k is", [](auto& p) { p.top_k = -1; });
  for (const float bad : {-0.1F, 1.1F, nan}) names("min_p is", [&](auto& p) { p.min_p = bad; });
  for (const float bad : {0.0F, -1.0F, nan, inf})
    names("repetition_penalty is", [&](auto& p) { p.repetition_penalty = bad; });
  for (const float bad : {-2.1F, 2.1F, nan}) names("presence_penalty is", [&](auto& p) { p.presence_penalty = bad; });
  for (const float bad : {-2.1F, 2.1F, nan}) names("frequency_penalty is", [&](auto& p) { p.frequency_penalty = bad; });
  names("max_tokens is 0", [](auto& p) { p.max_tokens = 0; });
  names("min_tokens is", [](auto& p) { p.min_tokens = 1001; });
  names("min_tokens is", [](auto& p) { p.min_tokens = -1; });
  names("top_logprobs is", [](auto& p) { p.top_logprobs = 17; });
  names("stop_ids has token 16", [](auto& p) { p.stop_ids = {16}; });
  names("logit_bias has token -1", [](auto& p) { p.logit_bias = {{-1, 1.0F}}; });
  names("logit_bias is", [&](auto& p) { p.logit_bias = {{1, nan}}; });
  EXPECT_EQ(refused([](auto&) {}), "accepted");
}

// ---- verification

Sequence sequence(const SamplingParams& p) {
  Sequence s;
  s.sampling = p;
  s.tokens = {3, 1};
  s.prompt_tokens = 2;
  return s;
}

// Tokens drawn one at a time from the rows, as without speculation.
std::vector<int32_t> one_by_one(const std::vector<std::vector<float>>& rows, const SamplingParams& p) {
  Sequence s = sequence(p);
  for (auto logits : rows) {
    const std::vector<int32_t> prompt(s.tokens.begin(), s.tokens.begin() + 2);
    s.tokens.push_back(sample(logits, p, s.produced(), prompt, s.output())->token);
  }
  return {s.tokens.begin() + 2, s.tokens.end()};
}

std::vector<int32_t> verified(const std::vector<std::vector<float>>& rows, const std::vector<int32_t>& drafts,
                              const SamplingParams& p) {
  Matrix logits(static_cast<int64_t>(drafts.size()) + 1, kVocab);
  for (int64_t r = 0; r < logits.rows(); ++r)
    std::copy_n(rows[static_cast<size_t>(r)].data(), kVocab, logits.view().row(r));
  std::vector<int32_t> out;
  for (const OutputToken& t : verify(logits.view(), drafts, sequence(p)).tokens) out.push_back(t.token);
  return out;
}

TEST(Verify, EmitsTheSameTokensAsOneByOne) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SamplingParams p = params(seed % 2 == 0 ? 0.0F : 1.0F);
    p.seed = seed;
    if (seed % 3 != 0) p.repetition_penalty = 1.3F;  // depends on the accepted drafts
    std::vector<std::vector<float>> rows;
    for (uint64_t r = 0; r < 5; ++r) rows.push_back(row(seed * 10 + r));
    const auto want = one_by_one(rows, p);
    for (size_t right = 0; right <= 4; ++right) {
      std::vector<int32_t> drafts(want.begin(), want.begin() + 4);
      if (right < 4) drafts[right] = (drafts[right] + 1) % kVocab;  // the first wrong draft
      EXPECT_EQ(verified(rows, drafts, p),
                std::vector<int32_t>(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(right) + 1));
    }
  }
}

TEST(Verify, StopsAtAStopIdAndAtTheLengthInsideABlock) {
  SamplingParams p = params(0);
  const std::vector<std::vector<float>> rows{row(1), row(2), row(3), row(4), row(5)};
  const auto want = one_by_one(rows, p);
  const std::vector<int32_t> drafts(want.begin(), want.begin() + 4);
  const auto verdict = [&] {
    Matrix logits(5, kVocab);
    for (int64_t r = 0; r < 5; ++r) std::copy_n(rows[static_cast<size_t>(r)].data(), kVocab, logits.view().row(r));
    return verify(logits.view(), drafts, sequence(p));
  };
  p.max_tokens = 2;
  EXPECT_EQ(verdict().tokens.size(), 2U);
  EXPECT_EQ(verdict().finish, FinishReason::length);
  p.max_tokens = 100;
  p.stop_ids = {want[2]};
  const auto at = static_cast<size_t>(std::find(want.begin(), want.end(), want[2]) - want.begin());
  EXPECT_EQ(verdict().tokens.size(), at + 1);
  EXPECT_EQ(verdict().finish, FinishReason::stop);
}

TEST(Verify, BrokenRowEndsOnlyWithAnError) {
  Matrix logits(1, kVocab);
  logits.data()[3] = std::numeric_limits<float>::quiet_NaN();
  const Verdict v = verify(logits.view(), {}, sequence(params(0)));
  EXPECT_EQ(v.finish, FinishReason::error);
  EXPECT_TRUE(v.tokens.empty());
  EXPECT_FALSE(v.error.empty());
}

}  // namespace
}  // namespace trireme::engine
