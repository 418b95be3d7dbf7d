#include "engine/rank_logits.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "layout/chunks.h"

namespace trireme::engine {
namespace {

using Prompt = std::pair<int64_t, std::vector<int32_t>>;  // number, tokens

class Program {
 public:
  Program(Rank& rank, int64_t chunk, int64_t greedy)
      : rank_(rank), chunk_(chunk), greedy_(greedy), vocab_(rank.config().vocab) {
    const layout::Instance& i = rank.instance();
    for (const auto& limit : {i.row_bound, i.max_dispatch_tokens}) {
      if (limit) chunk_ = std::min(chunk_, *limit * i.tp);
    }
    if (i.dynamic_chunking) {
      sizer_.emplace(layout::chunk_costs(rank.config(), i.pipeline), std::min(chunk_, i.chunk_tokens));
    }
    pages_.resize(static_cast<size_t>(rank.pools().pages().total()));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  // One prompt a group, `mine` for this rank's (null: none); all of the round's prompts are known everywhere.
  PromptLogits round(std::span<const Prompt> prompts, const std::vector<int32_t>* mine) {
    size_t steps = 0;
    for (const auto& [number, tokens] : prompts) steps = std::max(steps, cuts(tokens).size());
    PromptLogits result;
    row_.assign(static_cast<size_t>(vocab_), 0.0F);
    position_ = 0;
    std::vector<model::Batch> batches(steps);
    if (mine != nullptr) {
      int64_t begin = 0;
      size_t step = 0;
      for (const int64_t rows : cuts(*mine)) {
        fill(batches[step++], std::span(*mine).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)));
        begin += rows;
      }
    }
    run(batches, mine != nullptr ? &result.logits : nullptr);
    for (int64_t g = 0; g < greedy_; ++g) {
      int32_t token = static_cast<int32_t>(std::max_element(row_.begin(), row_.end()) - row_.begin());
      rank_.tell_stages(std::as_writable_bytes(std::span(&token, 1)));
      result.greedy.push_back(token);
      result.greedy_logits.insert(result.greedy_logits.end(), row_.begin(), row_.end());
      if (g + 1 == greedy_) break;
      std::vector<model::Batch> next(1);
      if (mine != nullptr) fill(next.front(), {&token, 1});
      run(next, nullptr);
    }
    return result;
  }

 private:
  std::vector<int64_t> cuts(const std::vector<int32_t>& tokens) const {
    std::vector<int64_t> sizes;
    const auto length = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < length; begin += sizes.back()) {
      sizes.push_back(sizer_ ? sizer_->next_chunk(begin, length - begin) : std::min(chunk_, length - begin));
    }
    return sizes;
  }

  void fill(model::Batch& batch, std::span<const int32_t> tokens) {
    const auto rows = static_cast<int64_t>(tokens.size());
    batch.tokens.assign(tokens.begin(), tokens.end());
    batch.segments.push_back({rows, position_, 0, pages_, true, {}});
    for (int64_t r = 0; r < rows; ++r) batch.logit_rows.push_back(r);
    position_ += rows;
  }

  // Appends all logits to `logits` (null: not wanted) and keeps the last row.
  void run(std::span<const model::Batch> batches, std::vector<float>* logits) {
    rank_.run(batches, [&](size_t, const model::ForwardOutput& output) {
      if (!rank_.last_stage() || output.logits.rows() == 0) return;
      const float* begin = output.logits.data();
      const int64_t count = output.logits.rows() * vocab_;
      if (logits != nullptr) logits->insert(logits->end(), begin, begin + count);
      row_.assign(begin + count - vocab_, begin + count);
    });
  }

  Rank& rank_;
  int64_t chunk_;
  int64_t greedy_;
  int64_t vocab_;
  std::optional<layout::ChunkSizer> sizer_;
  std::vector<int32_t> pages_;
  std::vector<float> row_;  // the newest logits
  int64_t position_ = 0;
};

template <class T>
void pass_on(Rank& rank, int from, int tag, std::vector<T>& values, size_t count) {
  if (from == 0) return;
  if (rank.place().rank == from) rank.everyone().send(0, tag, std::as_bytes(std::span(values)));
  if (rank.place().rank != 0) return;
  values.resize(count);
  rank.everyone().receive(from, tag, std::as_writable_bytes(std::span(values)));
}

}  // namespace

std::map<int64_t, PromptLogits> prompt_logits(Rank& rank, const std::map<int64_t, std::vector<int32_t>>& prompts,
                                              int64_t chunk, int64_t greedy) {
  const layout::Instance& instance = rank.instance();
  const std::vector<Prompt> list(prompts.begin(), prompts.end());
  const auto width = static_cast<size_t>(rank.config().vocab);
  Program program(rank, chunk, greedy);
  std::map<int64_t, PromptLogits> results;
  for (size_t first = 0; first < list.size(); first += static_cast<size_t>(instance.dp)) {
    const auto round = std::span(list).subspan(first, std::min(static_cast<size_t>(instance.dp), list.size() - first));
    const auto own = static_cast<size_t>(rank.place().dp);
    PromptLogits mine = program.round(round, own < round.size() ? &round[own].second : nullptr);
    for (size_t d = 0; d < round.size(); ++d) {
      // The first rank of the group in the last stage has them.
      const auto owner = static_cast<int>((instance.stages() - 1) * instance.ranks_per_stage() +
                                          static_cast<int64_t>(d) * instance.tp);
      PromptLogits other;
      PromptLogits& result = rank.place().rank == owner ? mine : other;
      const auto count = static_cast<size_t>(greedy);
      pass_on(rank, owner, 3 * static_cast<int>(d), result.logits, round[d].second.size() * width);
      pass_on(rank, owner, 3 * static_cast<int>(d) + 1, result.greedy, count);
      pass_on(rank, owner, 3 * static_cast<int>(d) + 2, result.greedy_logits, count * width);
      if (rank.place().rank == 0) results[round[d].first] = std::move(result);
    }
  }
  return results;
}

}  // namespace trireme::engine
