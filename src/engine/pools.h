// The state memory of one engine and how the model sees it.
#pragma once

#include <cstdint>
#include <optional>

#include "cache/draft_windows.h"
#include "cache/kda_cache.h"
#include "cache/latent_cache.h"
#include "checkpoint/config.h"
#include "ledger/ledger.h"
#include "model/batch.h"
#include "model/draft.h"
#include "ops/ops.h"

namespace trireme::engine {

class Pools {
 public:
  // Takes the memory of `sizes` from `account`, whose plan must be for the same sizes.
  Pools(const checkpoint::ModelConfig& config, ops::Precision precision, const ledger::PoolSizes& sizes,
        ledger::Account& account);

  // Adds the context windows of a draft, one a slot.
  void add_draft_windows(const checkpoint::DraftConfig& draft, ledger::Account& account);

  cache::LatentCache& latents() { return latents_; }
  cache::KdaCache& states() { return states_; }
  const cache::IdPool& pages() const { return latents_.pages(); }
  const cache::IdPool& slots() const { return states_.slots(); }
  // Valid as long as the pools.
  const model::StateViews& views() const { return views_; }
  // The context of the request in a slot. Only after add_draft_windows.
  model::DraftContext& draft_context(int32_t slot) { return contexts_[static_cast<size_t>(slot)]; }

 private:
  cache::LatentCache latents_;
  cache::KdaCache states_;
  std::optional<cache::DraftWindows> windows_;
  model::StateViews views_;
  std::vector<model::DraftContext> contexts_;  // one a slot
};

}  // namespace trireme::engine
