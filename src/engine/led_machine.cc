#include "engine/led_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trireme::engine {

LedMachine::LedMachine(Rank& rank) : rank_(rank), leader_(rank) {
  const int64_t pages = rank.pools().pages().total();
  const int64_t slots = rank.pools().slots().total();
  for (int64_t d = 0; d < leader_.groups(); ++d) pools_.push_back({{"page", pages}, {"slot", slots}});
  for (const int64_t length : rank.instance().warmup) warm_up(length);
}

// Runs a prompt of `length` tokens in every group, so that memory and connections are there before the first request.
void LedMachine::warm_up(int64_t length) {
  const layout::Instance& instance = rank_.instance();
  const int64_t room = pages(0).total() * page_tokens();
  if (length > room) {
    throw BadInput(fmt::format("warmup: a prompt of {} tokens; the pages of a group hold {}", length, room));
  }
  int64_t chunk = instance.chunk_tokens;
  for (const auto& limit : {instance.row_bound, instance.max_dispatch_tokens}) {
    if (limit) chunk = std::min(chunk, *limit * instance.tp);
  }
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t rows = std::min(chunk, length - begin);
    model::Batch batch;
    batch.tokens.assign(static_cast<size_t>(rows), 0);
    batch.segments.push_back({rows, begin, 0, {}, true, {}});
    batch.segments.front().pages.resize(static_cast<size_t>((length + page_tokens() - 1) / page_tokens()));
    std::iota(batch.segments.front().pages.begin(), batch.segments.front().pages.end(), 0);
    batch.logit_rows = {rows - 1};
    leader_.step(std::vector<model::Batch>(static_cast<size_t>(groups()), batch));
  }
}

std::vector<StepOutput> LedMachine::run(std::span<const GroupStep> steps) {
  std::vector<model::Batch> batches;
  for (const GroupStep& step : steps) batches.push_back(make_batch(step.plan, no_drafts(step.plan)));
  lost_ = true;  // unless the step comes back
  std::vector<Matrix> logits = leader_.step(batches);
  lost_ = false;
  std::vector<StepOutput> outputs;
  for (size_t d = 0; d < steps.size(); ++d) {
    outputs.push_back(
        judge(steps[d].plan, no_drafts(steps[d].plan), logits[d], steps[d].sequences, rank_.model().ops().pool()));
  }
  return outputs;
}

}  // namespace trireme::engine
