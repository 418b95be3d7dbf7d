// Runs a step: plan -> batch -> forward -> tokens. With a draft, decode rows carry drafted tokens that are verified in
// the same pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/pools.h"
#include "engine/scheduler.h"
#include "model/draft.h"
#include "model/model.h"

namespace trireme::engine {

struct StepOutput {
  std::vector<EntryResult> results;              // one an entry of the plan
  std::vector<std::vector<OutputToken>> tokens;  // the same tokens with logprobs
  int64_t draft_rounds = 0;                      // entries that were verified against drafts
  int64_t draft_emitted = 0;  // tokens that those yielded, the last one (correction or bonus) included
};

// Drafted tokens behind an entry's own, one list an entry.
using Drafts = std::vector<std::vector<int32_t>>;
inline Drafts no_drafts(const StepPlan& plan) { return Drafts(plan.entries.size()); }

// The batch of a plan whose entries carry `drafts`. Drafted entries are not committed.
model::Batch make_batch(const StepPlan& plan, const Drafts& drafts);

// Draws the tokens of every entry that samples from the logits of its batch's wanted rows, as far as its drafts agree.
// `logits` are used up. A row without finite logits ends only its own request, with an error.
StepOutput judge(const StepPlan& plan, const Drafts& drafts, Matrix& logits, std::span<const Sequence* const> sequences,
                 ThreadPool& pool);

class Executor {
 public:
  // `draft` may be null; otherwise the pools have its windows. All must outlive the executor.
  Executor(const model::Model& model, const model::Draft* draft, Pools& pools);

  // `sequences[i]` is the request of entry i, before the step. Throws what the model throws; then the state of the
  // step's requests is undefined and they must not go on. A row without finite logits ends only its own request, with
  // an error.
  StepOutput run(const StepPlan& plan, std::span<const Sequence* const> sequences);

 private:
  Drafts propose(const StepPlan& plan);
  void commit(const StepPlan& plan, const model::Batch& batch, const model::ForwardOutput& forward,
              const StepOutput& out);
  void add_draft_context(const StepPlan& plan, const model::Batch& batch, const model::ForwardOutput& forward,
                         const StepOutput& out);

  const model::Model& model_;
  const model::Draft* draft_;
  Pools& pools_;
};

}  // namespace trireme::engine
