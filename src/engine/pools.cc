#include "engine/pools.h"

namespace trireme::engine {

Pools::Pools(const checkpoint::ModelConfig& config, ops::Precision precision, const ledger::PoolSizes& sizes,
             ledger::Account& account)
    : latents_(config, precision, sizes.pages, account), states_(config, sizes.kda_slots, account) {
  for (int64_t i = 0; i < states_.layers(); ++i) {
    views_.kda.push_back({states_.recurrent(i), states_.stride(), states_.conv(i), states_.stride()});
  }
  for (int64_t i = 0; i < latents_.layers(); ++i) views_.latent.push_back(latents_.layer(i));
}

void Pools::add_draft_windows(const checkpoint::DraftConfig& draft, ledger::Account& account) {
  const int64_t slots = states_.slots().total();
  const int64_t rows = model::Draft::context_capacity(draft);
  windows_.emplace(slots, draft.layers, rows, draft.kv_width(), account);
  contexts_.resize(static_cast<size_t>(slots));
  for (int64_t slot = 0; slot < slots; ++slot) {
    model::DraftContext& context = contexts_[static_cast<size_t>(slot)];
    context.capacity = rows;
    for (int64_t layer = 0; layer < draft.layers; ++layer) {
      context.keys.push_back(windows_->keys(slot, layer));
      context.values.push_back(windows_->values(slot, layer));
    }
  }
}

}  // namespace trireme::engine
