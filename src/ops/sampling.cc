#include "ops/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"

namespace trireme::ops {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float& logit_of(std::span<float> logits, int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= logits.size()) {
    throw BadInput(fmt::format("token {} is not in the vocabulary; it must be from 0 to {}", token, logits.size() - 1));
  }
  return logits[static_cast<size_t>(token)];
}

bool likelier(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

double total(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += c.probability;
  return sum;
}

// exp((logit - largest) / temperature) of every token that is not masked; the largest gets 1.
std::vector<Candidate> relative_weights(std::span<const float> logits, double temperature) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kMasked) continue;
    const double weight = logits[i] == top ? 1.0 : std::exp((static_cast<double>(logits[i]) - top) / temperature);
    if (weight > 0) candidates.push_back({static_cast<int32_t>(i), weight});
  }
  return candidates;
}

void keep_top_k(std::vector<Candidate>& candidates, int32_t k) {
  if (k <= 0 || static_cast<size_t>(k) >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), likelier);
  candidates.resize(static_cast<size_t>(k));
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  if (top_p >= 1) return;
  const double wanted = top_p * total(candidates);
  // A heap, since usually a few of very many are taken.
  const auto last = [](const Candidate& a, const Candidate& b) { return likelier(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), last);
  auto heap_end = candidates.end();
  double taken = 0;
  do {
    std::pop_heap(candidates.begin(), heap_end, last);
    taken += (--heap_end)->probability;
  } while (taken < wanted && heap_end != candidates.begin());
  candidates.erase(candidates.begin(), heap_end);
}

void keep_min_p(std::vector<Candidate>& candidates, double min_p) {
  // The likeliest weighs 1.
  std::erase_if(candidates, [&](const Candidate& c) { return c.probability < min_p; });
}

}  // namespace

bool usable(std::span<const float> logits) {
  bool finite = false;
  for (const float v : logits) {
    if (std::isnan(v)) return false;
    finite = finite || std::isfinite(v);
  }
  return finite;
}

std::optional<int32_t> greedy(std::span<const float> logits) {
  if (!usable(logits)) return std::nullopt;
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void add_bias(std::span<float> logits, std::span<const std::pair<int32_t, float>> bias) {
  for (const auto& [token, value] : bias) logit_of(logits, token) += value;
}

void mask(std::span<float> logits, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) logit_of(logits, token) = kMasked;
}

void penalize(std::span<float> logits, std::span<const int32_t> prompt, std::span<const int32_t> output,
              const Penalties& penalties) {
  if (penalties.repetition == 1 && penalties.presence == 0 && penalties.frequency == 0) return;
  std::map<int32_t, int64_t> produced;  // zero for tokens that only the prompt has
  for (const int32_t token : prompt) produced[token];
  for (const int32_t token : output) ++produced[token];
  for (const auto& [token, count] : produced) {
    float& l = logit_of(logits, token);
    if (l == kMasked) continue;
    l = l > 0 ? l / penalties.repetition : l * penalties.repetition;
    if (count > 0) l -= penalties.frequency * static_cast<float>(count) + penalties.presence;
  }
}

std::vector<Candidate> distribution(std::span<const float> logits, const Filters& filters) {
  if (!usable(logits)) return {};
  std::vector<Candidate> candidates = relative_weights(logits, filters.temperature);
  keep_top_k(candidates, filters.top_k);
  keep_top_p(candidates, filters.top_p);
  keep_min_p(candidates, filters.min_p);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  const double sum = total(candidates);
  for (Candidate& c : candidates) c.probability /= sum;
  return candidates;
}

int32_t pick(std::span<const Candidate> candidates, double uniform) {
  double cumulated = 0;
  for (const Candidate& c : candidates) {
    cumulated += c.probability;
    if (uniform < cumulated) return c.token;
  }
  return candidates.back().token;  // the sum may end a rounding below one
}

double log_sum_exp(std::span<const float> logits) {
  if (!usable(logits)) return std::numeric_limits<double>::quiet_NaN();
  const double top = *std::max_element(logits.begin(), logits.end());
  if (std::isinf(top)) return top;
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - top);
  return top + std::log(sum);
}

std::vector<int32_t> largest(std::span<const float> logits, int64_t n) {
  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto count = std::clamp<int64_t>(n, 0, static_cast<int64_t>(tokens.size()));
  std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

}  // namespace trireme::ops
