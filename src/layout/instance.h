// One instance of a deployment: how its ranks divide the model. Pure data and pure functions; nothing here talks.
//
// rank = stage * ranks_per_stage() + tp_rank;  tp_rank = dp_index * tp + attention_index, attention_index fastest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "layout/share.h"

namespace trireme::layout {

enum class Role : uint8_t { unified, prefill, decode };

// How bank rows that a stage only passes on travel: with its own result, or at once.
struct EagerBank {
  bool enabled = false;
  std::vector<int64_t> stages;  // sending stages; empty: every stage that has inherited rows, and resolve() lists them
  bool prefetch = true;         // the next bank message is received while the stage computes
};

struct Instance {
  std::string name = "unified";
  Role role = Role::unified;
  std::vector<int64_t> pipeline;     // layers a stage; empty: resolve() fills it
  int64_t pipeline_stages = 0;       // with an empty pipeline: stages to cut by default_partition (chunks.h); 0: one
  int64_t dp = 1;                    // attention data parallel: groups that have batches of their own
  int64_t tp = 1;                    // attention tensor parallel: ranks of such a group
  int64_t dcp = 1;                   // decode context parallel: divides tp
  int64_t ep = 0;                    // expert parallel; 0: all ranks of a stage
  int64_t weight_shard = 1;          // ranks of one host that share one copy of replicated weights; 1: off
  bool move_smaller = true;          // with weight_shard: move activations instead of weights where that is fewer bytes
  int64_t vocab = 0;                 // ranks over which embedding and lm_head are split; 0: tp
  std::optional<int64_t> row_bound;  // rows a rank assumes of every other: no exchange of sizes, more are refused
  std::optional<int64_t> max_dispatch_tokens;  // most rows a rank sends to experts in a step
  int64_t ranks_per_host = 0;                  // 0: all ranks on one host
  int64_t async_depth = 0;                     // micro-batch slots beyond one a stage
  int64_t chunk_tokens = 8192;
  bool dynamic_chunking = false;
  EagerBank eager_bank;
  std::vector<int64_t> warmup;  // prompt lengths that run once before the instance is ready

  int64_t stages() const { return static_cast<int64_t>(pipeline.size()); }
  int64_t ranks_per_stage() const { return dp * tp; }
  int64_t ranks() const { return stages() * ranks_per_stage(); }
};

// Fills what was left open (pipeline, ep, vocab, the stages of an eager bank) and checks everything against the model:
// partition sums, divisibility, head splits, groups that must lie inside a host, settings without effect. Throws
// BadInput that names the instance, the setting, its value and a value that would work. The functions below take a
// resolved instance.
Instance resolve(Instance instance, const checkpoint::ModelConfig& config);

// Where a rank stands in each of its groups.
struct Place {
  int64_t rank = 0;
  int64_t stage = 0;
  int64_t stage_rank = 0;  // in its stage
  int64_t dp = 0;
  int64_t attention = 0;
};
// These three throw BadInput if the instance has no such rank and Failure if it was not resolved.
Place place_of(const Instance& instance, int64_t rank);

enum class Group : uint8_t {
  stage,      // all ranks of a stage
  pipeline,   // the ranks with the same stage_rank, by stage
  attention,  // tp ranks that share a batch
  context,    // dcp ranks inside an attention group
  experts,    // ep consecutive ranks of a stage
  vocab,      // consecutive ranks of a stage
  weights,    // weight shard: consecutive ranks of a stage
};
std::string_view group_name(Group group);
std::string_view role_name(Role role);

// World ranks of the rank's group, rising.
std::vector<int> members(const Instance& instance, Group group, int64_t rank);

// What the rank owns of the model.
RankShare share_of(const Instance& instance, int64_t rank);

}  // namespace trireme::layout
