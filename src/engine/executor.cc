#include "engine/executor.h"

#include <algorithm>
#include <utility>

#include "engine/speculation.h"

namespace trireme::engine {

Executor::Executor(const model::Model& model, const model::Draft* draft, Pools& pools)
    : model_(model), draft_(draft), pools_(pools) {}

model::Batch make_batch(const StepPlan& plan, const Drafts& drafts) {
  model::Batch batch;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const PlanEntry& entry = plan.entries[i];
    batch.tokens.insert(batch.tokens.end(), entry.tokens.begin(), entry.tokens.end());
    batch.tokens.insert(batch.tokens.end(), drafts[i].begin(), drafts[i].end());
    model::Segment segment;
    segment.rows = static_cast<int64_t>(entry.tokens.size() + drafts[i].size());
    segment.position = entry.position;
    segment.slot = entry.slot;
    segment.pages = entry.pages;
    segment.commit = drafts[i].empty();
    batch.segments.push_back(std::move(segment));
    // Logits of the last known token and of every draft behind it.
    const int64_t judged = entry.samples ? static_cast<int64_t>(drafts[i].size()) + 1 : 0;
    for (int64_t r = batch.rows() - judged; r < batch.rows(); ++r) batch.logit_rows.push_back(r);
  }
  return batch;
}

Drafts Executor::propose(const StepPlan& plan) {
  Drafts drafts(plan.entries.size());
  if (draft_ == nullptr) return drafts;
  std::vector<size_t> entries;
  std::vector<int32_t> anchors;
  std::vector<const model::DraftContext*> contexts;
  int64_t gamma = 0;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const PlanEntry& entry = plan.entries[i];
    if (entry.drafts < 1) continue;
    entries.push_back(i);
    anchors.push_back(entry.tokens.back());
    contexts.push_back(&pools_.draft_context(entry.slot));
    gamma = std::max(gamma, entry.drafts);
  }
  if (entries.empty()) return drafts;
  std::vector<std::vector<int32_t>> proposed = draft_->propose(anchors, contexts, gamma);
  for (size_t k = 0; k < entries.size(); ++k) {
    drafts[entries[k]] = std::move(proposed[k]);
    drafts[entries[k]].resize(static_cast<size_t>(plan.entries[entries[k]].drafts));
  }
  return drafts;
}

StepOutput judge(const StepPlan& plan, const Drafts& drafts, Matrix& logits, std::span<const Sequence* const> sequences,
                 ThreadPool& pool) {
  StepOutput out;
  const size_t count = plan.entries.size();
  out.results.resize(count);
  out.tokens.resize(count);
  std::vector<int64_t> first_logit(count, 0);
  for (size_t i = 1; i < count; ++i) {
    const int64_t before = plan.entries[i - 1].samples ? static_cast<int64_t>(drafts[i - 1].size()) + 1 : 0;
    first_logit[i] = first_logit[i - 1] + before;
  }
  // Each entry works on its own rows and random numbers, so the order of work does not matter.
  pool.parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (!plan.entries[i].samples) continue;
      const Rows rows = logits.view().row_range(first_logit[i], static_cast<int64_t>(drafts[i].size()) + 1);
      Verdict verdict = verify(rows, drafts[i], *sequences[i]);
      for (const OutputToken& t : verdict.tokens) out.results[i].tokens.push_back(t.token);
      out.results[i].finish = verdict.finish;
      out.results[i].error = std::move(verdict.error);
      out.tokens[i] = std::move(verdict.tokens);
    }
  });
  for (size_t i = 0; i < count; ++i) {
    if (drafts[i].empty()) continue;
    ++out.draft_rounds;
    out.draft_emitted += static_cast<int64_t>(out.tokens[i].size());
  }
  return out;
}

StepOutput Executor::run(const StepPlan& plan, std::span<const Sequence* const> sequences) {
  const Drafts drafts = propose(plan);
  const model::Batch batch = make_batch(plan, drafts);
  model::ForwardOutput forward = model_.forward(batch, pools_.views());
  StepOutput out = judge(plan, drafts, forward.logits, sequences, model_.ops().pool());
  commit(plan, batch, forward, out);
  add_draft_context(plan, batch, forward, out);
  return out;
}

// Folds the newest token and the accepted drafts of each verified entry into its state: as many rows as tokens came
// out.
void Executor::commit(const StepPlan& plan, const model::Batch& batch, const model::ForwardOutput& forward,
                      const StepOutput& out) {
  if (!forward.replay) return;
  std::vector<int64_t> accepted(plan.entries.size(), 0);
  for (size_t i = 0; i < accepted.size(); ++i) {
    const bool goes_on = !out.results[i].finish;
    if (!batch.segments[i].commit && goes_on) accepted[i] = static_cast<int64_t>(out.tokens[i].size());
  }
  model_.commit(batch, *forward.replay, accepted, pools_.views());
}

void Executor::add_draft_context(const StepPlan& plan, const model::Batch& batch, const model::ForwardOutput& forward,
                                 const StepOutput& out) {
  if (draft_ == nullptr) return;
  int64_t row = 0;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const model::Segment& segment = batch.segments[i];
    if (!out.results[i].finish) {
      model::DraftContext& context = pools_.draft_context(segment.slot);
      if (segment.position == 0) context.first_position = context.rows = 0;
      const int64_t rows = segment.commit ? segment.rows : static_cast<int64_t>(out.tokens[i].size());
      std::vector<ConstRows> taps;
      for (const Matrix& tap : forward.taps) taps.push_back(tap.view().row_range(row, rows));
      draft_->add_context(taps, context);
    }
    row += segment.rows;
  }
}

}  // namespace trireme::engine
