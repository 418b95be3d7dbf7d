// How one rank's forward pass meets the other ranks of its stage.
//
// Rows. A batch belongs to an attention group (tp ranks). Its n rows are cut into tp blocks of ceil(n / tp): the
// residual stream, the norms and everything of the MLP side exist for a rank's own block only. Attention sees all n
// rows, on this rank's heads: rows are gathered before it, its partial outputs are summed and scattered after it.
// Groups of several batches (experts, vocabulary, weight shard) exchange blocks padded to one size, equal on all ranks
// of the stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "layout/share.h"
#include "ops/ops.h"

namespace trireme::model {

// A rank's share of the model and its ends of the groups; null for a group of one. All outlive the model.
struct Parallel {
  layout::RankShare share;
  comm::Communicator* stage = nullptr;      // all ranks of the stage: sizes of the step
  comm::Communicator* attention = nullptr;  // ranks with one batch
  comm::Communicator* context = nullptr;    // ranks that divide its tokens
  comm::Communicator* experts = nullptr;
  comm::Communicator* combine = nullptr;  // the same ranks as `experts`, for the stream beside the main one
  comm::Communicator* vocab = nullptr;
  comm::Communicator* weights = nullptr;
  comm::Communicator* gather = nullptr;  // the same ranks as `weights`, for the stream beside the main one
  bool several_batches = false;          // the stage has several attention groups
  bool move_smaller = true;              // weight shard: move activations where that is fewer bytes
  std::optional<int64_t> max_dispatch;   // most own rows of any rank whose experts are elsewhere
  std::optional<int64_t> row_bound;      // own rows that every rank assumes of every other; absent: exchanged
};

inline int size_of(const comm::Communicator* group) { return group == nullptr ? 1 : group->size(); }
inline int rank_in(const comm::Communicator* group) { return group == nullptr ? 0 : group->rank(); }

// The row counts of one step.
struct StepShape {
  int64_t batch_rows = 0;   // n: rows of the attention group's batch
  int64_t group_block = 0;  // ceil(n / tp): rows of a block in the attention group
  int64_t begin = 0;        // the own block is [begin, begin + rows)
  int64_t rows = 0;
  int64_t block = 0;        // most own rows of any rank of the stage: blocks in its groups are padded to this
  int64_t logit_rows = 0;   // rows of the own block whose logits are wanted
  int64_t logit_block = 0;  // most of these of any rank of the stage
};

// How activations travel: in bf16 precision they hold bfloat16 values.
inline comm::Wire wire_of(const ops::Ops& ops) {
  return ops.precision() == ops::Precision::bf16 ? comm::Wire::bf16 : comm::Wire::f32;
}

}  // namespace trireme::model
