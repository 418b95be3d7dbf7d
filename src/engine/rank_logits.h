// Logits of given prompts on the ranks of an instance.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/rank.h"

namespace trireme::engine {

struct PromptLogits {
  std::vector<float> logits;    // [tokens, vocab]
  std::vector<int32_t> greedy;  // tokens decoded after the prompt, each the best of its row (the first among equals)
  std::vector<float> greedy_logits;  // [greedy, vocab], the rows that they were chosen from
};

// Runs every prompt in pieces of at most `chunk` tokens (or as the instance's dynamic chunking says) and decodes
// `greedy` tokens after it; attention groups take prompts in turn. Every rank calls it with the same arguments; the
// result is on rank 0, by the prompts' numbers. Prompts are not longer than the rank's pools.
std::map<int64_t, PromptLogits> prompt_logits(Rank& rank, const std::map<int64_t, std::vector<int32_t>>& prompts,
                                              int64_t chunk, int64_t greedy);

}  // namespace trireme::engine
