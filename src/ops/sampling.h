// From one row of logits to a token: pure functions, each one step. engine/ decides which steps a request takes and in
// what order.
//
// A masked token has the logit -inf and is never picked. A row is usable if it holds no NaN and at least one finite
// number; the functions that pick give no value for any other. +inf counts as the largest logit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace trireme::ops {

bool usable(std::span<const float> logits);

// The largest logit; the lowest token among equals. No value if the row is not usable.
std::optional<int32_t> greedy(std::span<const float> logits);

// ---- changes to a row. Tokens outside the row are BadInput.

// logit[token] += bias, in the order given.
void add_bias(std::span<float> logits, std::span<const std::pair<int32_t, float>> bias);

// logit[token] = -inf.
void mask(std::span<float> logits, std::span<const int32_t> tokens);

// Every token that occurs in `prompt` or `output`, once: l = l / repetition if l > 0, else l * repetition (Keskar et
// al. 2019, CTRL). Then every token that occurs n >= 1 times in `output`: l -= frequency * n + presence (OpenAI's
// definitions). repetition 1, presence 0 and frequency 0 change nothing.
struct Penalties {
  float repetition = 1;
  float presence = 0;
  float frequency = 0;
};
void penalize(std::span<float> logits, std::span<const int32_t> prompt, std::span<const int32_t> output,
              const Penalties& penalties);

// ---- the distribution

// Applied in this order to p = softmax(logits / temperature):
//   top_k: the k likeliest are kept; 0 or k >= the row's length: all
//   top_p: of those, the likeliest are kept until their share of what top_k left reaches top_p, at least one; 1: all
//   min_p: of those, the ones with p >= min_p * p of the likeliest are kept; 0: all
// Among equals the lower token counts as likelier.
struct Filters {
  float temperature = 1;  // > 0
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

struct Candidate {
  int32_t token = 0;
  double probability = 0;
};

// What is left of a row, by rising token, probabilities summing to one; masked tokens and those of probability zero are
// not in it. Empty if the row is not usable.
std::vector<Candidate> distribution(std::span<const float> logits, const Filters& filters);

// The candidate in whose stretch of the cumulated probabilities `uniform` in [0, 1) falls. Candidates must not be
// empty.
int32_t pick(std::span<const Candidate> candidates, double uniform);

// ---- log probabilities

// log(sum(exp(logits))) in float64: logit - log_sum_exp is the log probability. NaN if the row is not usable.
double log_sum_exp(std::span<const float> logits);

// The n largest, largest first, the lowest token first among equals; the whole row if n is larger. The row must hold no
// NaN.
std::vector<int32_t> largest(std::span<const float> logits, int64_t n);

}  // namespace trireme::ops
