// Weights that every rank of a host would hold alike are kept once, a block of output rows a rank. A step uses them in
// one of two ways, chosen for each half of a layer (attention, MLP) by which sends fewer bytes:
//   gather   all ranks' blocks travel into a staging buffer one layer ahead, on a stream of their own;
//   move     the ranks' activations travel instead: each rank multiplies the rows of all with its block and sends the
//            results back.
// The choice is a function of the step's block size alone, which is equal on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/stream.h"
#include "model/parallel.h"
#include "model/weights.h"

namespace trireme::model {

// Bytes that a rank sends for one half of a layer, blocks [first, last) of `sharded`, over a group of `ranks`:
//   gather = (ranks - 1) * bytes of the blocks
//   move   = (ranks - 1) * rows * (sum over distinct inputs of cols * wire bytes + sum over blocks of ceil(rows /
//   ranks) *
//            bytes of an output)
// rows: rows a rank, padded; `precision` fixes the bytes of an element on the wire.
struct ShardCost {
  int64_t gather = 0;
  int64_t move = 0;
};
ShardCost shard_cost(const ShardedWeights& sharded, size_t first, size_t last, int64_t ranks, int64_t rows,
                     ops::Precision precision);

class WeightShard {
 public:
  // `staging` holds two layers' blocks of all ranks. All must outlive the shard.
  WeightShard(const std::vector<LayerWeights>& layers, const ops::Ops& ops, const Parallel& parallel, Buffer staging);

  // Chooses the way of every half of every layer for a step of `block` rows a rank and begins the first gather.
  void begin_step(int64_t block);
  // Waits for the weights of layer `index` (of the stage) and begins the gather of the next one. The layer before is
  // done with its own: their buffer is the one that is filled now.
  void enter_layer(size_t index);

  // Whether the block of the entered layer was gathered; if not, activations must move.
  bool gathered(int64_t block) const;
  // Rank r's block of it. Valid until the next layer is entered.
  PackedMatrix block_of(int64_t block, int64_t r) const;

 private:
  struct Way {
    bool attention = false;  // gathered
    bool mlp = false;
    int64_t begin = 0;  // bytes of the layer's blocks that travel: [begin, end)
    int64_t end = 0;
  };
  void start(size_t order);
  std::byte* buffer(size_t order) { return staging_.data() + static_cast<int64_t>(order % 2) * staging_.bytes() / 2; }

  const std::vector<LayerWeights>& layers_;
  const ops::Ops& ops_;
  const Parallel& parallel_;
  Buffer staging_;
  std::vector<Way> ways_;        // one a layer
  std::vector<size_t> gathers_;  // layers that gather, in order
  size_t next_ = 0;              // the next of these to be entered
  std::array<comm::Event, 2> done_;
  size_t layer_ = 0;           // the entered layer
  std::byte* base_ = nullptr;  // its gathered bytes
  comm::Stream stream_;
};

}  // namespace trireme::model
