// Every byte of memory that weights and pools take, by name, before anything holds it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "layout/share.h"
#include "ops/ops.h"
#include "tensor/buffer.h"

namespace trireme::ledger {

// What the pools of one rank hold.
struct PoolSizes {
  int64_t pages = 0;      // MLA pages of ops::kPageTokens tokens, each across all MLA layers
  int64_t kda_slots = 0;  // KDA states (recurrent and convolution), each across all KDA layers
};

struct Line {
  std::string name;  // "weights.kda", "weights.experts", "pool.mla_pages", "pool.kda_state", ...
  int64_t bytes = 0;
  std::string formula;  // in words and numbers
};

struct Plan {
  std::vector<Line> lines;
  int64_t total() const;
  const Line& line(const std::string& name) const;  // throws Failure if there is none
};

// The lines of one rank: the weights that `share` gives it, as `ops` packs them (from the catalogue and the formats
// found in `checkpoint`), the two staging buffers of its weight shard, and its pools. Reads no tensor.
Plan plan_memory(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, const PoolSizes& pools,
                 const layout::RankShare& share = {});

// The model as a rank's pools see it: its layers only, its heads only.
checkpoint::ModelConfig pool_config(const checkpoint::ModelConfig& config, const layout::RankShare& share);

// Bytes of one MLA page and of one KDA slot over all layers of `config` (a rank's pool_config).
int64_t page_bytes(const checkpoint::ModelConfig& config, ops::Precision precision);
int64_t kda_slot_bytes(const checkpoint::ModelConfig& config);

// Hands out the planned memory. Nothing else in the engine allocates weights or pools. Thread-safe.
class Account {
 public:
  explicit Account(Plan plan);

  // A zeroed buffer that is charged to a line. Throws Failure if the line would be overdrawn (a fault of the plan, not
  // of the user) or the system does not give the memory.
  Buffer take(const std::string& line, int64_t bytes);
  int64_t taken(const std::string& line) const;
  const Plan& plan() const { return plan_; }

 private:
  Plan plan_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> taken_;
};

}  // namespace trireme::ledger
