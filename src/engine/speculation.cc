#include "engine/speculation.h"

#include "engine/sampler.h"

namespace trireme::engine {

Verdict verify(Rows logits, std::span<const int32_t> drafts, const Sequence& sequence) {
  Verdict verdict;
  const SamplingParams& params = sequence.sampling;
  std::span<const int32_t> prompt;
  std::vector<int32_t> output;  // grows with what is accepted
  const bool remembers = penalizes(params);
  if (remembers) {
    prompt = std::span(sequence.tokens).first(static_cast<size_t>(sequence.prompt_tokens));
    output.assign(sequence.output().begin(), sequence.output().end());
  }
  for (int64_t i = 0; i < logits.rows; ++i) {
    const int64_t produced = sequence.produced() + i;
    std::optional<OutputToken> token =
        sample({logits.row(i), static_cast<size_t>(logits.cols)}, params, produced, prompt, output);
    if (!token) {
      verdict.finish = FinishReason::error;
      verdict.error = "the model gave logits that are no numbers; its weights or this request's state are damaged";
      return verdict;
    }
    const int32_t drawn = token->token;
    if (remembers) output.push_back(drawn);
    verdict.finish = finish_after(params, drawn, produced + 1);
    verdict.tokens.push_back(std::move(*token));
    const bool agrees = static_cast<size_t>(i) < drafts.size() && drafts[static_cast<size_t>(i)] == drawn;
    if (verdict.finish || !agrees) break;
  }
  return verdict;
}

}  // namespace trireme::engine
