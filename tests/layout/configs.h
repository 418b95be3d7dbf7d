// Configs made in memory: Kimi K3 as published, and small ones of every shape.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "checkpoint/config.h"
#include "layout/instance.h"

namespace trireme::layout::testing {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;

inline ModelConfig k3() {
  ModelConfig config;
  config.architecture = "KimiK3ForConditionalGeneration";
  config.hidden = 7168;
  config.layers = 93;
  config.vocab = 163840;
  config.max_positions = 1048576;
  for (int64_t i = 0; i < config.layers; ++i) {
    config.kinds.push_back(i % 4 == 3 || i == 92 ? LayerKind::mla : LayerKind::kda);
  }
  config.residual_block = 12;
  config.dense_inter = 33792;
  config.first_dense = 1;
  config.situ = true;
  config.kda = {.heads = 96, .dim = 128, .conv_taps = 4, .lower_bound = -5.0F, .full_rank_gate = true};
  config.mla = {
      .heads = 96, .q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .value = 128, .output_gate = true};
  config.moe = {.experts = 896,
                .top_k = 16,
                .inter = 3072,
                .shared_inter = 6144,
                .latent = 3584,
                .latent_norm = true,
                .renormalize = true,
                .scaling = 1.0F};
  return config;
}

// 13 layers of 8 heads with 32 experts.
inline ModelConfig small() {
  ModelConfig config = k3();
  config.hidden = 10;
  config.layers = 13;
  config.vocab = 50;
  config.max_positions = 4096;
  config.kinds.assign(13, LayerKind::kda);
  for (const size_t layer : {3U, 7U, 11U, 12U}) config.kinds[layer] = LayerKind::mla;
  config.residual_block = 4;
  config.dense_inter = 21;
  config.kda.heads = 8;
  config.kda.dim = 4;
  config.mla.heads = 8;
  config.mla.q_lora = 7;
  config.mla.kv_lora = 6;
  config.mla.nope = 3;
  config.mla.rope = 2;
  config.mla.value = 5;
  config.moe.experts = 32;
  config.moe.top_k = 4;
  config.moe.inter = 3;
  config.moe.shared_inter = 5;
  config.moe.latent = 9;
  return config;
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() { return state_ = mix64(state_); }

 private:
  uint64_t state_;
};

inline int64_t pick(Rng& rng, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(rng.next() % static_cast<uint64_t>(most - least + 1));
}

inline int64_t pick_divisor(Rng& rng, int64_t number) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) found.push_back(d);
  }
  return found[static_cast<size_t>(pick(rng, 0, std::ssize(found) - 1))];
}

inline ModelConfig random_config(Rng& rng) {
  ModelConfig config = small();
  config.layers = pick(rng, 2, 7);
  config.kinds.clear();
  for (int64_t i = 0; i < config.layers; ++i) {
    config.kinds.push_back(pick(rng, 0, 2) == 0 ? LayerKind::mla : LayerKind::kda);
  }
  config.kda.heads = config.mla.heads = pick(rng, 1, 12);
  config.kda.dim = pick(rng, 1, 3);
  config.kda.full_rank_gate = pick(rng, 0, 1) == 0;
  if (pick(rng, 0, 1) == 0) config.mla.q_lora.reset();
  config.mla.output_gate = pick(rng, 0, 1) == 0;
  if (pick(rng, 0, 2) == 0) config.moe.latent.reset();
  if (pick(rng, 0, 2) == 0) config.moe.shared_inter = 0;
  if (pick(rng, 0, 2) == 0) config.residual_block.reset();
  config.tied_embeddings = pick(rng, 0, 1) == 0;
  config.first_dense = pick(rng, 0, 2);
  config.dense_inter = pick(rng, 1, 30);
  config.vocab = pick(rng, 30, 60);
  config.moe.experts = 12;
  return config;
}

// The largest divisor of `number` that is at most `wanted` and leaves no share of ceil(size / divisor) empty.
inline int64_t shares_of(int64_t number, int64_t wanted, std::initializer_list<int64_t> sizes) {
  for (int64_t d = wanted; d > 1; --d) {
    const auto full = [d](int64_t size) { return size == 0 || (d - 1) * ((size + d - 1) / d) < size; };
    if (number % d == 0 && std::all_of(sizes.begin(), sizes.end(), full)) return d;
  }
  return 1;
}

// An instance that fits the config.
inline Instance random_instance(Rng& rng, const ModelConfig& config) {
  Instance instance;
  instance.pipeline_stages = pick(rng, 1, config.layers);
  const int64_t channels = config.first_dense > 0 ? config.dense_inter : 0;
  instance.tp = shares_of(config.mla.heads, pick_divisor(rng, config.mla.heads), {channels});
  instance.dcp = pick_divisor(rng, instance.tp);
  instance.dp = pick(rng, 1, 3);
  instance.ep = std::gcd(pick_divisor(rng, instance.ranks_per_stage()), config.moe.experts);
  const int64_t ranks = instance.ranks_per_stage();
  instance.vocab = shares_of(ranks, pick_divisor(rng, ranks), {config.vocab});
  if (config.moe.latent && config.first_dense < config.layers) {
    const bool any_moe = config.layers > 1;  // behind layer 0
    const int64_t width = config.kda.heads * config.kda.dim;
    if (any_moe) {
      instance.weight_shard =
          shares_of(ranks, pick_divisor(rng, ranks),
                    {*config.moe.latent, config.moe.shared_inter, config.hidden, width,
                     config.mla.heads * (config.mla.nope + config.mla.rope), config.mla.heads * config.mla.value});
    }
  }
  return instance;
}

}  // namespace trireme::layout::testing
