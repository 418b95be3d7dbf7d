// Decode context parallel: the ranks of a group store a sequence's latents in turn (token t on rank t mod size), each
// attends with the queries of all the group's heads to its own tokens, and the parts are merged by head.
#pragma once

#include "model/pass.h"

namespace trireme::model {

inline ops::TokenShard token_shard(const Pass& pass) {
  return {pass.parallel.share.tokens.index, pass.parallel.share.tokens.count};
}

// ctx [T, group heads * latent] and lse [T, group heads] over this rank's tokens -> merged [T, own heads * latent] over
// all tokens. One exchange: a rank sends each other rank (latent * activation bytes + 4) bytes a row and head of that
// rank.
void merge_over_tokens(const Pass& pass, ConstRows ctx, ConstRows lse, Rows merged);

}  // namespace trireme::model
