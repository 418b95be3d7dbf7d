// Embedding and lm_head divided by vocabulary rows over a group of ranks that may have batches of their own.
#pragma once

#include <cstdint>
#include <span>

#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

// Embedding rows of the own block's tokens, [own rows, hidden]. Every rank of the vocabulary group takes part: ids
// travel, each rank looks up the rows that it has, and the sum of one row and zeros comes back.
void embed_rows(const Pass& pass, const ops::EmbeddingTable& table, std::span<const int32_t> tokens, Rows out);

// Logits of the wanted rows of the batch, [batch.logit_rows, vocab], on every rank of the attention group. `normed`
// [shape.logit_rows, hidden]: the final rows of those that lie in the own block. Rows go to all ranks of the vocabulary
// group, logits of a rank's vocabulary rows come back.
Matrix vocab_logits(const Pass& pass, const PackedMatrix& head, ConstRows normed);

}  // namespace trireme::model
