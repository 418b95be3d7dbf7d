// Block-parallel drafts (DSpark, DFlash): one non-causal forward over [anchor, mask, mask, ...] proposes several
// tokens. The draft never runs over the prompt: its context keys and values are projected from streams of the target
// (taps).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/draft_config.h"
#include "ledger/ledger.h"
#include "model/model.h"

namespace trireme::model {

struct DraftWeights;  // model/draft_weights.h

// One request's context: for each draft layer the keys (normed, rotated) and values of its last committed tokens,
// [capacity][kv_width] float32. Rows [0, rows) are the tokens [first_position, first_position + rows). The memory is
// the cache's.
struct DraftContext {
  std::vector<float*> keys;  // one a layer
  std::vector<float*> values;
  int64_t capacity = 0;  // >= Draft::context_capacity()
  int64_t first_position = 0;
  int64_t rows = 0;
};

class Draft {
 public:
  // Reads a draft folder (config.json, model.safetensors). Memory comes from the line "weights.draft". Throws BadInput
  // if the draft does not fit the target (hidden size, vocabulary, tapped layers). Sets the target's taps. `target`
  // must outlive the draft.
  Draft(const std::filesystem::path& dir, Model& target, ledger::Account& account);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  // The ledger's lines for a draft and its windows for `requests` requests, to be appended to the plan before the
  // account is made.
  static std::vector<ledger::Line> plan(const std::filesystem::path& dir, const ops::Ops& ops, int64_t requests);

  const checkpoint::DraftConfig& config() const;
  // Rows of a context buffer: a window, and as much again so that it moves down rarely.
  static int64_t context_capacity(const checkpoint::DraftConfig& config) { return 2 * config.max_window(); }

  // Appends the next tokens' keys and values. `taps`: one a tapped layer, rows of ForwardOutput::taps that belong to
  // this request's newly committed tokens, all with the same number of rows.
  void add_context(std::span<const ConstRows> taps, DraftContext& context) const;

  // Greedy proposals for several requests: row i holds gamma tokens after anchors[i]. The anchor is the last emitted
  // token; it stands at position contexts[i]->first_position + rows and is not in the context. 1 <= gamma <=
  // config().max_gamma().
  std::vector<std::vector<int32_t>> propose(std::span<const int32_t> anchors,
                                            std::span<const DraftContext* const> contexts, int64_t gamma) const;

 private:
  Matrix block_forward(std::span<const int32_t> anchors, std::span<const DraftContext* const> contexts,
                       int64_t rows) const;
  std::vector<int32_t> markov_chain(int32_t anchor, ConstRows logits) const;

  Model& target_;
  std::unique_ptr<DraftWeights> weights_;
};

}  // namespace trireme::model
