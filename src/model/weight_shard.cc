#include "model/weight_shard.h"

#include <set>

namespace trireme::model {
namespace {

int64_t wire_bytes(ops::Precision precision, ops::Output output) {
  return precision == ops::Precision::bf16 && output == ops::Output::rounded ? 2 : 4;
}

size_t attention_blocks(const ShardedWeights& sharded) {
  size_t count = 0;
  while (count < sharded.blocks.size() && sharded.blocks[count].offset < sharded.attention_bytes) ++count;
  return count;
}

}  // namespace

ShardCost shard_cost(const ShardedWeights& sharded, size_t first, size_t last, int64_t ranks, int64_t rows,
                     ops::Precision precision) {
  ShardCost cost;
  std::set<int64_t> inputs;
  int64_t row_bytes = 0;
  for (size_t i = first; i < last; ++i) {
    const ShardedWeights::Block& b = sharded.blocks[i];
    cost.gather += (ranks - 1) * b.bytes;
    if (inputs.insert(b.input).second) row_bytes += b.cols * wire_bytes(precision, ops::Output::rounded);
    row_bytes += layout::range_of(b.rows, {0, ranks}).size() * wire_bytes(precision, b.output);
  }
  cost.move = (ranks - 1) * rows * row_bytes;
  return cost;
}

WeightShard::WeightShard(const std::vector<LayerWeights>& layers, const ops::Ops& ops, const Parallel& parallel,
                         Buffer staging)
    : layers_(layers), ops_(ops), parallel_(parallel), staging_(std::move(staging)) {}

void WeightShard::begin_step(int64_t block) {
  const int64_t ranks = size_of(parallel_.weights);
  const auto gathers = [&](const ShardedWeights& s, size_t first, size_t last) {
    if (first == last) return false;
    if (!parallel_.move_smaller) return true;
    const ShardCost cost = shard_cost(s, first, last, ranks, block, ops_.precision());
    return cost.gather <= cost.move;
  };
  ways_.clear();
  gathers_.clear();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const ShardedWeights& s = layers_[l].sharded;
    const size_t split = attention_blocks(s);
    Way way{gathers(s, 0, split), gathers(s, split, s.blocks.size()), 0, s.memory.bytes()};
    if (!way.attention) way.begin = s.attention_bytes;
    if (!way.mlp) way.end = s.attention_bytes;
    if (way.attention || way.mlp) gathers_.push_back(l);
    ways_.push_back(way);
  }
  next_ = 0;
  if (!gathers_.empty()) start(0);
}

// Begins gather number `order` of the step.
void WeightShard::start(size_t order) {
  const size_t layer = gathers_[order];
  const Way& way = ways_[layer];
  const std::byte* own = layers_[layer].sharded.memory.data();
  const std::span<const std::byte> mine(own + way.begin, static_cast<size_t>(way.end - way.begin));
  const std::span<std::byte> all(buffer(order), mine.size() * static_cast<size_t>(size_of(parallel_.gather)));
  done_[order % 2] = stream_.run([this, mine, all] { parallel_.gather->all_gather(mine, all); });
}

void WeightShard::enter_layer(size_t index) {
  layer_ = index;
  base_ = nullptr;
  if (next_ == gathers_.size() || gathers_[next_] != index) return;
  done_[next_ % 2].wait();
  base_ = buffer(next_);
  ++next_;
  if (next_ < gathers_.size()) start(next_);
}

bool WeightShard::gathered(int64_t block) const {
  const ShardedWeights& s = layers_[layer_].sharded;
  const bool of_attention = s.blocks[static_cast<size_t>(block)].offset < s.attention_bytes;
  return of_attention ? ways_[layer_].attention : ways_[layer_].mlp;
}

PackedMatrix WeightShard::block_of(int64_t block, int64_t r) const {
  const ShardedWeights::Block& b = layers_[layer_].sharded.blocks[static_cast<size_t>(block)];
  const Way& way = ways_[layer_];
  const int64_t rows = layout::range_of(b.rows, {r, size_of(parallel_.weights)}).size();
  std::byte* at = base_ + r * (way.end - way.begin) + b.offset - way.begin;
  return {b.format, rows, b.cols, Buffer::borrow(at, ops_.packed_bytes(b.format, rows, b.cols))};
}

}  // namespace trireme::model
