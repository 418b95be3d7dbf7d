// Which tokens the logits of an entry yield: one for a plain row, up to drafts + 1 for a verified block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "tensor/matrix.h"

namespace trireme::engine {

struct Verdict {
  std::vector<OutputToken> tokens;
  std::optional<FinishReason> finish;
  std::string error;
};

// logits [drafts + 1, vocab], used as scratch: row i is the target's answer to the request's tokens followed by
// drafts[0..i). At each row the target's own token is drawn, with the random number that belongs to that position of
// the output. While it equals the draft, the next row is valid and drawn from too. So the output is, token for token,
// the one without speculation, greedy or sampled, and its distribution is the target's.
Verdict verify(Rows logits, std::span<const int32_t> drafts, const Sequence& sequence);

}  // namespace trireme::engine
