// The memory of MLA latents: pages of ops::kPageTokens tokens, for every MLA layer of the model.
#pragma once

#include <cstdint>

#include "cache/id_pool.h"
#include "checkpoint/config.h"
#include "ledger/ledger.h"
#include "ops/ops.h"

namespace trireme::cache {

// One page number stands for the same page in every MLA layer. Memory is [layer][page][kPageTokens][latent + rope],
// bfloat16 or float32 by precision, and comes from the ledger line "pool.mla_pages".
class LatentCache {
 public:
  // Throws Failure if the ledger planned other than `pages` pages.
  LatentCache(const checkpoint::ModelConfig& config, ops::Precision precision, int64_t pages, ledger::Account& account);

  int64_t layers() const { return layers_; }
  // View of MLA layer `index`, counted among the MLA layers. Valid as long as the cache.
  ops::LatentPages layer(int64_t index);

  IdPool& pages() { return pages_; }
  const IdPool& pages() const { return pages_; }

 private:
  int64_t layers_ = 0;
  int64_t width_ = 0;
  DType dtype_ = DType::bf16;
  IdPool pages_;
  Buffer memory_;
};

// Pages that `tokens` tokens need.
constexpr int64_t pages_for(int64_t tokens) { return (tokens + ops::kPageTokens - 1) / ops::kPageTokens; }

}  // namespace trireme::cache
