// The attention of a KDA layer.
#pragma once

#include <cstdint>

#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

// out = W_o gated_norm(KDA(x)); x is the normed input [T, hidden]. Reads and (for committed segments) advances the
// slots of KDA layer `index` (counted among KDA layers), fills its checkpoints, and records what uncommitted segments
// need for replay.
void kda_attention(const Pass& pass, const KdaWeights& w, int64_t index, ConstRows x, Rows out);

// Folds the first accepted[i] rows of uncommitted segment i into the slots of KDA layer `index`.
void kda_replay(const Pass& pass, const ReplayRecord& record, int64_t index, std::span<const int64_t> accepted);

}  // namespace trireme::model
