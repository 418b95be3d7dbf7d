// What goes into the engine and what comes out of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::engine {

using RequestId = uint64_t;

// Defaults are those of a greedy-free plain sample; serve/ and cli/ set the model's own.
struct SamplingParams {
  float temperature = 1.0F;         // 0: greedy
  float top_p = 1.0F;               // (0, 1]
  int32_t top_k = 0;                // 0: all
  float min_p = 0.0F;               // [0, 1]
  float repetition_penalty = 1.0F;  // > 0
  float presence_penalty = 0.0F;    // [-2, 2]
  float frequency_penalty = 0.0F;   // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  int64_t max_tokens = 1;         // generated tokens; cut to what the context allows
  int64_t min_tokens = 0;         // stop ids are masked before
  std::vector<int32_t> stop_ids;  // end the request; reported as part of the output
  int32_t top_logprobs = -1;      // -1: no logprobs; 0: of the chosen token; n: and of the n best
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // of the raw distribution: log softmax before penalties and temperature
};

struct OutputToken {
  int32_t token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

enum class FinishReason : uint8_t { stop, length, cancelled, error };

// Events of one request come in order; exactly one carries a finish reason, and it is the last.
struct Output {
  RequestId id = 0;
  std::vector<OutputToken> tokens;  // new ones
  std::optional<FinishReason> finish;
  std::string error;  // for FinishReason::error: what to change
};

struct Request {
  std::vector<int32_t> prompt;  // not empty
  SamplingParams sampling;
  int32_t priority = 0;  // higher goes first; equal: in order of arrival
  // Called on the engine's thread, in order; must not block and must not call the engine.
  std::function<void(const Output&)> on_output;
};

}  // namespace trireme::engine
