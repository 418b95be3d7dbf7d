// The engine's machine when the model is divided over ranks: requests live in attention groups, rank 0 leads the steps
// and samples from the logits that come back.
#pragma once

#include <vector>

#include "engine/leader.h"
#include "engine/machine.h"

namespace trireme::engine {

class LedMachine : public Machine {
 public:
  // `rank` is rank 0 and outlives the machine; the followers end with it. Runs the instance's warm-up prompts.
  explicit LedMachine(Rank& rank);

  const checkpoint::ModelConfig& config() const override { return rank_.config(); }
  const ledger::Account& account() const override { return rank_.account(); }
  std::string_view isa() const override { return rank_.model().ops().name(); }
  int threads() const override { return rank_.model().ops().pool().threads(); }
  int64_t groups() const override { return leader_.groups(); }
  cache::IdPool& pages(int64_t group) override { return pools_[static_cast<size_t>(group)].pages; }
  cache::IdPool& slots(int64_t group) override { return pools_[static_cast<size_t>(group)].slots; }
  int64_t page_tokens() const override { return rank_.page_tokens(); }
  std::vector<StepOutput> run(std::span<const GroupStep> steps) override;
  bool lost() const override { return lost_; }

 private:
  void warm_up(int64_t length);

  // All ranks of a group have the same pages and slots by number, so the numbers are kept here.
  struct Numbers {
    cache::IdPool pages, slots;
  };

  Rank& rank_;
  Leader leader_;
  std::vector<Numbers> pools_;
  bool lost_ = false;  // a step failed: the ranks have ended
};

}  // namespace trireme::engine
