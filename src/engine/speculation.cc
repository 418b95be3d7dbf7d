#include "engine/speculation.h"

#include "engine/sampler.h"

namespace trireme::engine {

Verdict verify(Rows logits, std::span<const int32_t> drafts, const Sequence& sequence) {
  Verdict verdict;
  const SamplingParams& params = sequence.sampling;
  std::vector<int32_t> tokens = sequence.tokens;  // grows with what is accepted; penalties look at it
  for (int64_t i = 0; i < logits.rows; ++i) {
    const auto produced = static_cast<int64_t>(tokens.size()) - sequence.prompt_tokens;
    std::optional<OutputToken> token =
        sample({logits.row(i), static_cast<size_t>(logits.cols)}, params, tokens, sequence.prompt_tokens);
    if (!token) {
      verdict.finish = FinishReason::error;
      verdict.error = "the model gave logits that are no numbers; its weights or this request's state are damaged";
      return verdict;
    }
    tokens.push_back(token->token);
    verdict.finish = finish_after(params, token->token, produced + 1);
    verdict.tokens.push_back(std::move(*token));
    const bool agrees = static_cast<size_t>(i) < drafts.size() && drafts[static_cast<size_t>(i)] == tokens.back();
    if (verdict.finish || !agrees) break;
  }
  return verdict;
}

}  // namespace trireme::engine
