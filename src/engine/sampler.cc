#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "ops/sampling.h"

namespace trireme::engine {
namespace {

void check_range(const char* name, double value, bool good, const char* right) {
  if (!good) throw BadInput(fmt::format("{} is {}; it must be {}", name, value, right));  // NaN fails every comparison
}

void check_token(const char* name, int32_t token, int64_t vocab) {
  if (token < 0 || token >= vocab) {
    throw BadInput(fmt::format("{} has token {}, which is outside the vocabulary of {}", name, token, vocab));
  }
}

TokenLogprob logprob_of(std::span<const float> logits, int32_t token, double log_sum) {
  return {token, static_cast<float>(logits[static_cast<size_t>(token)] - log_sum)};
}

std::vector<TokenLogprob> best_of(std::span<const float> logits, int32_t n, double log_sum) {
  std::vector<TokenLogprob> best;
  for (const int32_t token : ops::largest(logits, n)) best.push_back(logprob_of(logits, token, log_sum));
  return best;
}

void adjust(std::span<float> logits, const SamplingParams& p, int64_t produced, std::span<const int32_t> prompt,
            std::span<const int32_t> output) {
  ops::add_bias(logits, p.logit_bias);
  ops::penalize(logits, prompt, output, {p.repetition_penalty, p.presence_penalty, p.frequency_penalty});
  if (produced + 1 < p.min_tokens) ops::mask(logits, p.stop_ids);
}

std::optional<int32_t> choose(std::span<const float> logits, const SamplingParams& p, uint64_t position) {
  if (p.temperature == 0) return ops::greedy(logits);
  const auto candidates = ops::distribution(logits, {p.temperature, p.top_k, p.top_p, p.min_p});
  if (candidates.empty()) return std::nullopt;
  return ops::pick(candidates, uniform_at(p.seed, position, 0));
}

}  // namespace

void check_sampling(const SamplingParams& p, int64_t vocab) {
  check_range("temperature", p.temperature, p.temperature >= 0 && std::isfinite(p.temperature), "0 (greedy) or more");
  check_range("top_p", p.top_p, p.top_p > 0 && p.top_p <= 1, "above 0 and at most 1");
  check_range("top_k", p.top_k, p.top_k >= 0, "0 (all) or more");
  check_range("min_p", p.min_p, p.min_p >= 0 && p.min_p <= 1, "from 0 to 1");
  check_range("repetition_penalty", p.repetition_penalty,
              p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty), "above 0");
  check_range("presence_penalty", p.presence_penalty, std::abs(p.presence_penalty) <= 2, "from -2 to 2");
  check_range("frequency_penalty", p.frequency_penalty, std::abs(p.frequency_penalty) <= 2, "from -2 to 2");
  check_range("max_tokens", static_cast<double>(p.max_tokens), p.max_tokens >= 1, "at least 1");
  check_range("min_tokens", static_cast<double>(p.min_tokens), p.min_tokens >= 0 && p.min_tokens <= p.max_tokens,
              "from 0 to max_tokens");
  check_range("top_logprobs", p.top_logprobs, p.top_logprobs >= -1 && p.top_logprobs <= vocab,
              "-1 (none) to the vocabulary's size");
  for (const int32_t token : p.stop_ids) check_token("stop_ids", token, vocab);
  for (const auto& [token, bias] : p.logit_bias) {
    check_token("logit_bias", token, vocab);
    check_range("logit_bias", bias, std::isfinite(bias), "a finite number");
  }
}

bool penalizes(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

std::optional<OutputToken> sample(std::span<float> logits, const SamplingParams& params, int64_t produced,
                                  std::span<const int32_t> prompt, std::span<const int32_t> output) {
  const bool wants_logprobs = params.top_logprobs >= 0;
  OutputToken result;
  std::vector<float> raw;
  double log_sum = 0;
  if (wants_logprobs) {
    log_sum = ops::log_sum_exp(logits);
    if (!std::isfinite(log_sum)) return std::nullopt;
    raw.assign(logits.begin(), logits.end());
    result.top = best_of(raw, params.top_logprobs, log_sum);
  }
  adjust(logits, params, produced, prompt, output);
  const std::optional<int32_t> token = choose(logits, params, static_cast<uint64_t>(produced));
  if (!token) return std::nullopt;
  result.token = *token;
  if (wants_logprobs) result.logprob = logprob_of(raw, *token, log_sum).logprob;
  return result;
}

std::optional<FinishReason> finish_after(const SamplingParams& params, int32_t token, int64_t produced) {
  const bool stops = std::find(params.stop_ids.begin(), params.stop_ids.end(), token) != params.stop_ids.end();
  if (stops && produced >= params.min_tokens) return FinishReason::stop;
  if (produced >= params.max_tokens) return FinishReason::length;
  return std::nullopt;
}

}  // namespace trireme::engine
