// Small models and a way to run prompts through one of them under any layout, ranks as threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "comm/local.h"
#include "engine/rank_logits.h"
#include "layout/deployment.h"
#include "support/random_checkpoint.h"
#include "support/tensors.h"

namespace trireme::testing {

// The models of the matrix, each as small as what it shows allows.
inline ModelRecipe recipe_of(const std::string& name) {
  ModelRecipe r;
  if (name == "plain") {
    r.storage = Storage::bf16;
  } else if (name == "deep") {  // many layers for many stages; heads 0 and 4, 8, 12 write bank rows
    r.layers = 18;
    r.mla_layers = {3, 7, 11, 15, 17};
    r.heads = 2;
    r.residual_block = 4;
    r.experts = 4;
  } else if (name == "release") {  // as many layers as the largest release
    r.layers = 93;
    for (int64_t l = 3; l < 93; l += 4) r.mla_layers.insert(l);
    r.mla_layers.insert(92);
    r.hidden = 32;
    r.heads = 2;
    r.residual_block = 12;
    r.experts = 2;
    r.top_k = 1;
  } else if (name == "odd") {  // three divides what it can, two and four little
    r.heads = 6;
    r.hidden = 60;
    r.vocab = 97;
    r.kv_lora = 24;
    r.experts = 9;
    r.top_k = 3;
    r.dense_inter = 93;
    r.expert_inter = 64;
    r.shared_experts = 2;
    r.seed = 2;
  } else if (name == "wide") {
    r.heads = 16;
    r.experts = 16;
    r.top_k = 3;
  } else if (name == "tall") {  // 8 stages of 4 ranks, 32 heads
    r.layers = 8;
    r.mla_layers = {3, 7};
    r.hidden = 32;
    r.heads = 32;
    r.kda_dim = 8;
    r.nope = 8;
    r.value = 8;
    r.experts = 32;
  } else if (name == "fp8") {  // blocks of 128 that two ranks cut between blocks and four inside
    r.hidden = 136;
    r.kda_dim = 64;
    r.value = 64;
    r.kv_lora = 40;
    r.dense_inter = 260;
    r.latent = 160;
    r.storage = Storage::fp8;
  } else if (name == "scarce") {  // of few rows and channels the last of four ranks gets one
    r.heads = 8;
    r.hidden = 36;
    r.vocab = 19;
    r.dense_inter = 13;
    r.expert_inter = 33;
    r.latent = 33;
    r.storage = Storage::bf16;
  } else if (name == "linear") {
    r.linear = true;
    r.storage = Storage::bf16;
  } else if (name == "tied") {
    r.tied = true;
  } else {
    throw Failure("no recipe is called " + name);
  }
  return r;
}

// The folder of a model: random ones by recipe, others where they lie. Empty if it is not here.
inline std::filesystem::path model_dir(const std::string& name) {
  if (name == "k3-nano") return source_dir() / "models" / name;
  if (name == "kimi-linear-tiny") return source_dir() / "tests" / "golden" / name;
  if (name.starts_with("tiny-")) {
    const std::filesystem::path dir = shared_dir() / "golden" / name;
    return std::filesystem::exists(dir / "config.json") ? dir : std::filesystem::path();
  }
  static std::map<std::string, RandomCheckpoint> made;
  return made.try_emplace(name, recipe_of(name)).first->second.dir();
}

// "attention = { tp = 2 }" or more lines of an [[instance]], or the name of a built-in deployment.
inline layout::Instance instance_of(const std::string& toml, const std::filesystem::path& model) {
  const checkpoint::ModelConfig config = checkpoint::read_config(model);
  const auto built_in = layout::built_in_deployments();
  const bool named = std::find(built_in.begin(), built_in.end(), toml) != built_in.end();
  const layout::Deployment deployment =
      named ? layout::read_deployment(toml) : layout::parse_deployment("[[instance]]\n" + toml, "layout");
  return layout::resolve(deployment.instances.at(0), config);
}

using Prompts = std::map<int64_t, std::vector<int32_t>>;

inline Prompts random_prompts(const std::vector<int64_t>& lengths, int64_t vocab) {
  Prompts prompts;
  for (size_t p = 0; p < lengths.size(); ++p) {
    std::vector<int32_t>& tokens = prompts[static_cast<int64_t>(p)];
    for (int64_t i = 0; i < lengths[p]; ++i) {
      tokens.push_back(static_cast<int32_t>(uniform_at(p, static_cast<uint64_t>(i), 5) * static_cast<double>(vocab)));
    }
  }
  return prompts;
}

// Runs `body` on every rank of the instance, collectives checked.
inline void on_ranks(const layout::Instance& instance, const std::function<void(comm::World&)>& body,
                     std::chrono::seconds patience = std::chrono::seconds(60)) {
  comm::LocalOptions options;
  options.checked = true;
  options.ranks_per_host = static_cast<int>(instance.ranks_per_host);
  options.patience = patience;
  comm::run_local(static_cast<int>(instance.ranks()), options, body);
}

struct Work {
  Prompts prompts;
  int64_t chunk = 48;
  int64_t greedy = 3;
  ops::Precision precision = ops::Precision::f32;
};

inline engine::RankOptions rank_options(const Work& work) {
  engine::RankOptions options;
  options.precision = work.precision;
  for (const auto& [number, tokens] : work.prompts) {
    options.tokens = std::max(options.tokens, static_cast<int64_t>(tokens.size()) + work.greedy);
  }
  return options;
}

using Results = std::map<int64_t, engine::PromptLogits>;

inline Results run_layout(const std::filesystem::path& model, const layout::Instance& instance, const Work& work) {
  Results results;
  on_ranks(instance, [&](comm::World& world) {
    engine::Rank rank(model, instance, rank_options(work), world);
    Results mine = engine::prompt_logits(rank, work.prompts, work.chunk, work.greedy);
    if (world.rank() == 0) results = std::move(mine);
  });
  return results;
}

}  // namespace trireme::testing
