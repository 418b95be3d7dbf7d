// The models and options that the step tests share.
#pragma once

#include <cstdint>
#include <filesystem>

#include "checkpoint/config.h"
#include "comm/local.h"
#include "engine/rank.h"
#include "layout/instance.h"
#include "support/random_checkpoint.h"
#include "support/tensors.h"

namespace trireme::testing {

// As small as 16 ranks with 8 heads and 16 experts allow.
inline ModelRecipe tiny_recipe() {
  ModelRecipe r;
  r.layers = 4;
  r.mla_layers = {1, 3};
  r.hidden = 32;
  r.vocab = 64;
  r.heads = 8;
  r.kda_dim = 4;
  r.q_lora = 16;
  r.kv_lora = 16;
  r.nope = 4;
  r.rope = 4;
  r.value = 4;
  r.dense_inter = 32;
  r.experts = 16;
  r.top_k = 2;
  r.storage = Storage::bf16;
  return r;
}

// Wide enough that weights are much more bytes than rows.
inline ModelRecipe wide_recipe() {
  ModelRecipe r = tiny_recipe();
  r.hidden = 256;
  r.kda_dim = 32;
  r.value = 32;
  r.q_lora = 64;
  r.kv_lora = 64;
  r.latent = 128;
  r.expert_inter = 64;
  r.shared_experts = 4;
  return r;
}

inline std::filesystem::path nano() { return source_dir() / "models" / "k3-nano"; }

// Instance::ep and the like by assignment, as a file would say them.
inline layout::Instance resolved(layout::Instance instance, const std::filesystem::path& model) {
  return layout::resolve(std::move(instance), checkpoint::read_config(model));
}

inline engine::RankOptions rank_options(ops::Precision precision, int64_t tokens, int64_t slots) {
  engine::RankOptions options;
  options.precision = precision;
  options.tokens = tokens;
  options.slots = slots;
  return options;
}

inline comm::LocalOptions checked(int64_t patience = 60) {
  comm::LocalOptions options;
  options.checked = true;
  options.patience = std::chrono::seconds(patience);
  return options;
}

}  // namespace trireme::testing
