// What a chunk of a prompt costs a pipeline stage, and what follows from it: chunk sizes behind long prefixes and the
// default cut of layers into stages. Costs are floating-point operations counted from the config: deterministic, the
// same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"

namespace trireme::layout {

// cost(L, x) = token x + expand (L + x) + pair x (L + x/2)   for x new tokens behind a prefix of L.
struct ChunkCost {
  double token = 0;  // of a new token: 2 x the parameters that it meets (top_k experts, no kv_b, no lm_head), KDA state
  double expand = 0;  // of expanding the latent of a token by kv_b
  double pair = 0;    // of a query with a key, all heads
  double at(double prefix, double tokens) const;
};

// Of layers [begin, end).
ChunkCost chunk_cost(const checkpoint::ModelConfig& config, int64_t begin, int64_t end);
// A cost a stage.
std::vector<ChunkCost> chunk_costs(const checkpoint::ModelConfig& config, const std::vector<int64_t>& pipeline);

// Layers a stage over `stages` stages so that the dearest stage is as cheap as can be for chunks of chunk_tokens behind
// a prefix of kReferencePrefix tokens; among equals the earlier cut, from the last cut to the first. Throws BadInput
// unless 1 <= stages <= layers.
inline constexpr int64_t kReferencePrefix = 65536;
std::vector<int64_t> default_partition(const checkpoint::ModelConfig& config, int64_t stages,
                                       int64_t chunk_tokens = 8192);

// Chunk sizes that cost no stage more than a chunk of chunk_tokens at the start of a prompt costs the dearest one.
// Sizes never grow with the prefix.
class ChunkSizer {
 public:
  // `grain`: sizes are multiples of it where more tokens follow (a page, the chunk of a kernel). Throws BadInput unless
  // chunk_tokens and grain are at least 1 and there is a stage.
  ChunkSizer(std::vector<ChunkCost> costs, int64_t chunk_tokens, int64_t grain = 64);

  double budget() const { return budget_; }  // max over stages of cost(0, chunk_tokens)

  // The x of cost(prefix, x) = budget, the least over stages; 0 or less where expanding the prefix alone costs more.
  double exact(int64_t prefix) const;

  // Tokens of the next chunk: all of `remaining` if they fit; otherwise exact() rounded down to the grain, at least
  // chunk_tokens / 8 (rounded down likewise, at least one grain) and at most chunk_tokens. 0 if nothing remains.
  int64_t next_chunk(int64_t prefix, int64_t remaining) const;

 private:
  std::vector<ChunkCost> costs_;
  int64_t chunk_tokens_;
  int64_t grain_;
  double budget_ = 0;
};

}  // namespace trireme::layout
