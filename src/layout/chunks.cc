#include "layout/chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace trireme::layout {
namespace {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;

constexpr int64_t kKdaChunk = 64;  // tokens that a KDA kernel takes at once

ChunkCost kda_cost(const ModelConfig& config) {
  const auto& kda = config.kda;
  const int64_t gate =
      kda.full_rank_gate ? kda.width() * config.hidden : kda.dim * config.hidden + kda.width() * kda.dim;
  const int64_t parameters = 4 * kda.width() * config.hidden + gate  // q, k, v, o
                             + kda.dim * config.hidden + kda.width() * kda.dim + kda.heads * config.hidden;
  const int64_t state = kda.heads * (6 * kda.dim * kda.dim + 4 * kKdaChunk * kda.dim);
  return {static_cast<double>(2 * parameters + state), 0, 0};
}

ChunkCost mla_cost(const ModelConfig& config) {
  const auto& mla = config.mla;
  const int64_t query = mla.heads * (mla.nope + mla.rope);
  const int64_t width = mla.heads * mla.value;
  const int64_t parameters = (mla.q_lora ? *mla.q_lora * (config.hidden + query) : config.hidden * query) +
                             mla.cache_width() * config.hidden + width * config.hidden * (mla.output_gate ? 2 : 1);
  return {static_cast<double>(2 * parameters),
          static_cast<double>(2 * mla.heads * (mla.nope + mla.value) * mla.kv_lora),
          static_cast<double>(2 * mla.heads * (mla.nope + mla.rope + mla.value))};
}

double mlp_cost(const ModelConfig& config, int64_t layer) {
  if (!config.is_moe(layer)) return static_cast<double>(2 * 3 * config.hidden * config.dense_inter);
  const auto& moe = config.moe;
  const int64_t width = moe.latent.value_or(config.hidden);
  const int64_t router = moe.experts * (config.hidden + 1);
  const int64_t latent = (moe.latent ? 2 * width * config.hidden : 0) + (moe.latent_norm ? width : 0);
  const int64_t parameters = router + latent + 3 * config.hidden * moe.shared_inter + moe.top_k * 3 * width * moe.inter;
  return static_cast<double>(2 * parameters);
}

// The x > 0 of cost.at(prefix, x) = budget; not above 0 where the prefix alone is over the budget.
double solve(const ChunkCost& cost, double prefix, double budget) {
  const double linear = cost.token + cost.expand + cost.pair * prefix;
  const double rest = budget - cost.expand * prefix;
  if (rest <= 0) return 0;
  if (cost.pair == 0) return rest / linear;
  // (-b + sqrt(b^2 + 2 a r)) / a without the difference of near equals.
  return 2 * rest / (linear + std::sqrt(linear * linear + 2 * cost.pair * rest));
}

}  // namespace

double ChunkCost::at(double prefix, double tokens) const {
  return token * tokens + expand * (prefix + tokens) + pair * tokens * (prefix + tokens / 2);
}

ChunkCost chunk_cost(const ModelConfig& config, int64_t begin, int64_t end) {
  ChunkCost sum;
  for (int64_t layer = begin; layer < end; ++layer) {
    const bool kda = config.kinds[static_cast<size_t>(layer)] == LayerKind::kda;
    const ChunkCost attention = kda ? kda_cost(config) : mla_cost(config);
    sum.token += attention.token + mlp_cost(config, layer);
    sum.expand += attention.expand;
    sum.pair += attention.pair;
  }
  return sum;
}

std::vector<ChunkCost> chunk_costs(const ModelConfig& config, const std::vector<int64_t>& pipeline) {
  std::vector<ChunkCost> costs;
  int64_t begin = 0;
  for (const int64_t layers : pipeline) {
    costs.push_back(chunk_cost(config, begin, begin + layers));
    begin += layers;
  }
  return costs;
}

std::vector<int64_t> default_partition(const ModelConfig& config, int64_t stages, int64_t chunk_tokens) {
  const int64_t layers = config.layers;
  if (stages < 1 || stages > layers) {
    throw BadInput(fmt::format("{} layers do not make {} stages; 1 to {} would work", layers, stages, layers));
  }
  std::vector<double> before{0};  // cost of the layers before each
  for (int64_t layer = 0; layer < layers; ++layer) {
    const ChunkCost cost = chunk_cost(config, layer, layer + 1);
    before.push_back(before.back() + cost.at(static_cast<double>(kReferencePrefix), static_cast<double>(chunk_tokens)));
  }
  // best[n]: the dearest stage when the first n layers make s + 1 stages; cut[s][n]: where the last of those begins.
  const auto count = static_cast<size_t>(layers);
  std::vector<double> best = before;
  std::vector<std::vector<size_t>> cut(static_cast<size_t>(stages), std::vector<size_t>(count + 1, 0));
  for (size_t s = 1; s < static_cast<size_t>(stages); ++s) {
    std::vector<double> next(count + 1, std::numeric_limits<double>::infinity());
    for (size_t n = s + 1; n <= count; ++n) {
      for (size_t c = s; c < n; ++c) {
        const double dearest = std::max(best[c], before[n] - before[c]);
        if (dearest < next[n]) {
          next[n] = dearest;
          cut[s][n] = c;
        }
      }
    }
    best = std::move(next);
  }
  std::vector<int64_t> pipeline(static_cast<size_t>(stages));
  size_t end = count;
  for (size_t s = static_cast<size_t>(stages); s-- > 0;) {
    pipeline[s] = static_cast<int64_t>(end - cut[s][end]);
    end = cut[s][end];
  }
  return pipeline;
}

ChunkSizer::ChunkSizer(std::vector<ChunkCost> costs, int64_t chunk_tokens, int64_t grain)
    : costs_(std::move(costs)), chunk_tokens_(chunk_tokens), grain_(grain) {
  if (costs_.empty()) throw BadInput("chunk sizes need the cost of a stage at least");
  if (chunk_tokens_ < 1) throw BadInput(fmt::format("chunk_tokens = {}; 1 or more would work", chunk_tokens_));
  if (grain_ < 1) throw BadInput(fmt::format("a chunk grain of {} tokens; 1 or more would work", grain_));
  for (const ChunkCost& cost : costs_) budget_ = std::max(budget_, cost.at(0, static_cast<double>(chunk_tokens_)));
}

double ChunkSizer::exact(int64_t prefix) const {
  double least = std::numeric_limits<double>::infinity();
  for (const ChunkCost& cost : costs_) least = std::min(least, solve(cost, static_cast<double>(prefix), budget_));
  return least;
}

int64_t ChunkSizer::next_chunk(int64_t prefix, int64_t remaining) const {
  const auto whole_grains = [&](int64_t tokens) { return tokens / grain_ * grain_; };
  // The budget comes out of the same formula as the size, so at prefix 0 the answer is chunk_tokens up to rounding.
  const auto fitting = static_cast<int64_t>(std::floor(exact(prefix) * (1 + 1e-12)));
  if (remaining <= std::min(fitting, chunk_tokens_)) return std::max<int64_t>(remaining, 0);
  const int64_t least = std::max(grain_, whole_grains(chunk_tokens_ / 8));
  const int64_t size = std::min(std::max(whole_grains(fitting), least), chunk_tokens_);
  return std::min(size, remaining);
}

}  // namespace trireme::layout
