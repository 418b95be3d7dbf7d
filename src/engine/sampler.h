// From logits to a token: the request's settings applied to one row. The arithmetic on rows is in ops/sampling.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/request.h"

namespace trireme::engine {

// Throws BadInput that names the field, its value and what would be right.
void check_sampling(const SamplingParams& params, int64_t vocab);

// Whether `sample` looks at the tokens before.
bool penalizes(const SamplingParams& params);

// Draws the `produced`-th token (counted from 0) after `prompt`; `output` are those before it. Both may be empty unless
// penalizes(params). Logprobs are of the raw row. Then, in this order: logit
// bias, repetition, presence and frequency penalties, stop ids masked before min_tokens; temperature; top-k, top-p,
// min-p; the draw, with uniform_at(seed, produced, 0). Temperature 0 takes the largest value, the lowest
// id among equals. `logits` is scratch afterwards. No value if the row holds NaN or no finite number.
std::optional<OutputToken> sample(std::span<float> logits, const SamplingParams& params, int64_t produced,
                                  std::span<const int32_t> prompt, std::span<const int32_t> output);

// Whether the `produced`-th token (counted from 1) is the last. A stop id counts only from min_tokens on.
std::optional<FinishReason> finish_after(const SamplingParams& params, int32_t token, int64_t produced);

}  // namespace trireme::engine
