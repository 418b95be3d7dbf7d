// What one rank sends in one step, by group and operation: formulas over the layout and row counts alone, for planning
// and for holding the counters of a run against. Bytes are those on the wire; what stays on its rank is not counted.
//
// Signs: w bytes of an activation on the wire (2 as bf16, 4 as f32), H hidden, n rows of the attention group's batch,
// b = ceil(n / tp), B = StepRows::block, L = StepRows::wanted_block.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/catalogue.h"
#include "comm/communicator.h"
#include "layout/instance.h"

namespace trireme::layout {

// By the names that a rank's communicators have: group_name(), with " combine" (experts), " gather" (weights) and
// " bank" (pipeline) for the streams beside the main one.
using GroupTraffic = std::map<std::string, comm::Traffic>;

// The batch of one attention group.
struct BatchRows {
  int64_t rows = 0;
  std::vector<int64_t> logit_rows;  // rising
};

// The row counts of a step in one attention group.
struct StepRows {
  int64_t batch = 0;         // n
  int64_t block = 0;         // own rows that every rank of the stage assumes of every other: the most, or row_bound
  int64_t wanted = 0;        // logit rows of the batch
  int64_t group_wanted = 0;  // most of these in the own rows of one rank of the group
  int64_t wanted_block = 0;  // the same over the stage, or row_bound
};

// One a group, from the batches of all groups (as many as instance.dp).
std::vector<StepRows> step_rows(const Instance& instance, std::span<const BatchRows> batches);

// Rows of the block that the rank with this index in its attention group owns: min(b, n - index b), at least 0.
int64_t own_rows(const Instance& instance, const StepRows& rows, int64_t attention_index);

// One half of a layer in a weight shard, in plain numbers.
struct ShardHalf {
  struct Block {
    int64_t columns = 0;  // ceil(rows of the matrix / ranks)
    int64_t bytes = 0;    // packed
    bool rounded = true;  // results travel as activations; otherwise as f32
  };
  std::vector<Block> blocks;   // matrices
  std::vector<int64_t> reads;  // widths of the rows they read, each read by one or several matrices

  // Bytes a rank sends over `ranks`:
  //   gather = (ranks - 1) * sum of bytes
  //   move   = (ranks - 1) * B * (sum of reads * w + sum of columns * (w or 4))
  int64_t gather(int64_t ranks) const;
  int64_t move(int64_t ranks, int64_t block_rows, comm::Wire wire) const;
  // The least B at which gathering sends no more than moving.
  int64_t crossover(int64_t ranks, comm::Wire wire) const;
};
using ShardLayer = std::array<ShardHalf, 2>;  // attention, MLP

// Bytes of `rows` rows of a matrix as the backend packs them.
using PackedBytes = std::function<int64_t(const checkpoint::CatalogueEntry& matrix, int64_t rows)>;
// One a layer of the rank's stage; halves without sharded matrices are empty.
std::vector<ShardLayer> shard_layers(const checkpoint::ModelConfig& config, const RankShare& share,
                                     const PackedBytes& packed_bytes);

// What a rank exchanges with other ranks for the experts of one layer. Routing decides it.
struct Dispatch {
  int64_t rows_sent = 0;       // own rows, once for each other rank that has an expert of theirs
  int64_t pairs_sent = 0;      // (row, expert) whose expert is elsewhere
  int64_t pairs_received = 0;  // of other ranks, for the experts here: each goes back as a row
};

class StepTraffic {
 public:
  // `header_bytes`: in front of each message between stages.
  StepTraffic(const checkpoint::ModelConfig& config, const Instance& instance, int64_t rank, comm::Wire wire,
              int64_t header_bytes);

  // Everything. `shard` is shard_layers() of the rank; `dispatch` one a MoE layer of the stage. Of either nothing if
  // the instance has no weight shard, or experts are not divided.
  GroupTraffic step(const StepRows& rows, std::span<const ShardLayer> shard, std::span<const Dispatch> dispatch) const;

  // The parts of it. A step without rows anywhere in the stage sends its sizes (and empty bank messages) only.
  // stage: 8 bytes to each other rank, if there are several batches and no row_bound.
  void add_sizes(GroupTraffic& traffic) const;
  // attention: b H w gathered from and summed to each other rank, for every attention and dense MLP, if n > 0; last
  // stage: the group's logits, f32.
  void add_attention(GroupTraffic& traffic, const StepRows& rows) const;
  // context: own heads x (kv_lora w + 4) a row to each other rank, for every MLA layer.
  void add_context(GroupTraffic& traffic, const StepRows& rows) const;
  // vocab: first stage 4 B for the ids and B H w for the rows, last stage L H w for the rows and 4 L ceil(V / ranks)
  // for the logits, to each other rank.
  void add_vocabulary(GroupTraffic& traffic, const StepRows& rows) const;
  // weights: each half its smaller way, or always gathered without move_smaller.
  void add_weights(GroupTraffic& traffic, const StepRows& rows, std::span<const ShardLayer> shard) const;
  // experts: 16 bytes of counts to each other rank, 8 a pair, latent w a row; combine: latent w a pair that came.
  void add_experts(GroupTraffic& traffic, const Dispatch& dispatch) const;
  // pipeline: to the next stage (bank rows + 1) * own rows * H w behind a header, of which an eager bank's inherited
  // rows travel apart.
  void add_edges(GroupTraffic& traffic, const StepRows& rows) const;

 private:
  bool first_stage() const { return place_.stage == 0; }
  bool last_stage() const { return place_.stage + 1 == instance_.stages(); }
  int64_t bank_rows_before(int64_t stage) const;
  bool is_eager(int64_t sending_stage) const;
  void add_messages(GroupTraffic& traffic, const std::string& group, comm::Operation operation, int64_t bytes) const;

  const checkpoint::ModelConfig& config_;
  const Instance& instance_;
  Place place_;
  RankShare share_;
  comm::Wire wire_;
  int64_t element_;  // w
  int64_t header_bytes_;
};

}  // namespace trireme::layout
