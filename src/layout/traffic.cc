#include "layout/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "comm/wire.h"

namespace trireme::layout {
namespace {

using comm::Operation;

// Rows of a batch whose (O, LSE) are exchanged at a time, and after which their heads' block is padded to 4 bytes.
constexpr int64_t kContextTile = 128;

int64_t group_block(const Instance& instance, int64_t rows) { return (rows + instance.tp - 1) / instance.tp; }

void add(GroupTraffic& traffic, const std::string& group, Operation operation, int64_t bytes) {
  comm::Traffic::Count& count = traffic[group][operation];
  ++count.calls;
  count.bytes += bytes;
}

std::string name_of(Group group) { return std::string(group_name(group)); }

// Which projections' results are rounded for the next product; all others enter float32 arithmetic.
bool is_rounded(std::string_view name) {
  for (const std::string_view part : {".q_proj", ".k_proj", ".v_proj", ".q_b_proj", ".routed_expert_down_proj"}) {
    if (name.ends_with(part)) return true;
  }
  return false;
}

// What a sharded matrix reads: those with equal words read the same rows at once.
std::string_view read_by(const checkpoint::CatalogueEntry& entry) {
  const std::string_view name = std::string_view(entry.name).substr(entry.name.rfind('.') + 1);
  if (entry.group == checkpoint::Group::kda && (name == "k_proj" || name == "v_proj" || name == "g_proj"))
    return "q_proj";
  if (name == "up_proj" || name == "routed_expert_down_proj") return "gate_proj";  // of the shared expert
  return name;
}

}  // namespace

std::vector<StepRows> step_rows(const Instance& instance, std::span<const BatchRows> batches) {
  if (std::ssize(batches) != instance.dp) {
    throw BadInput(
        fmt::format("traffic of {} batches in instance {} of {}", batches.size(), instance.name, instance.dp));
  }
  std::vector<StepRows> all;
  StepRows most;
  for (const BatchRows& batch : batches) {
    StepRows rows;
    rows.batch = batch.rows;
    rows.wanted = std::ssize(batch.logit_rows);
    std::map<int64_t, int64_t> wanted;  // by rank of the group
    for (const int64_t row : batch.logit_rows) {
      rows.group_wanted = std::max(rows.group_wanted, ++wanted[row / group_block(instance, batch.rows)]);
    }
    most.block = std::max(most.block, group_block(instance, batch.rows));
    most.wanted_block = std::max(most.wanted_block, rows.group_wanted);
    all.push_back(rows);
  }
  for (StepRows& rows : all) {
    rows.block = instance.row_bound.value_or(most.block);
    rows.wanted_block = instance.row_bound.value_or(most.wanted_block);
  }
  return all;
}

int64_t own_rows(const Instance& instance, const StepRows& rows, int64_t attention_index) {
  const int64_t block = group_block(instance, rows.batch);
  return std::clamp<int64_t>(rows.batch - attention_index * block, 0, block);
}

int64_t ShardHalf::gather(int64_t ranks) const {
  int64_t bytes = 0;
  for (const Block& b : blocks) bytes += b.bytes;
  return (ranks - 1) * bytes;
}

int64_t ShardHalf::move(int64_t ranks, int64_t block_rows, comm::Wire wire) const {
  int64_t bytes = 0;
  for (const int64_t columns : reads) bytes += columns * comm::element_bytes(wire);
  for (const Block& b : blocks) bytes += b.columns * (b.rounded ? comm::element_bytes(wire) : 4);
  return (ranks - 1) * block_rows * bytes;
}

int64_t ShardHalf::crossover(int64_t ranks, comm::Wire wire) const {
  const int64_t each = move(ranks, 1, wire);
  return each == 0 ? 0 : (gather(ranks) + each - 1) / each;
}

std::vector<ShardLayer> shard_layers(const checkpoint::ModelConfig& config, const RankShare& share,
                                     const PackedBytes& packed_bytes) {
  const int64_t end = share.layer_end < 0 ? config.layers : share.layer_end;
  std::vector<ShardLayer> layers(static_cast<size_t>(end - share.layer_begin));
  std::set<std::pair<int64_t, std::string_view>> read;  // layer and what was counted in it
  const std::vector<checkpoint::CatalogueEntry> entries = checkpoint::catalogue(config);
  for (const checkpoint::CatalogueEntry& entry : entries) {
    if (!is_sharded(entry, share) || entry.layer < share.layer_begin || entry.layer >= end) continue;
    const bool mlp = entry.group == checkpoint::Group::latent || entry.group == checkpoint::Group::shared;
    ShardHalf& half = layers[static_cast<size_t>(entry.layer - share.layer_begin)][mlp ? 1 : 0];
    const int64_t columns = range_of(entry.shape[0], {0, share.weights.count}).size();
    half.blocks.push_back({columns, packed_bytes(entry, columns), is_rounded(entry.name)});
    if (read.insert({entry.layer, read_by(entry)}).second) half.reads.push_back(entry.shape[1]);
  }
  return layers;
}

StepTraffic::StepTraffic(const checkpoint::ModelConfig& config, const Instance& instance, int64_t rank, comm::Wire wire,
                         int64_t header_bytes)
    : config_(config),
      instance_(instance),
      place_(place_of(instance, rank)),
      share_(share_of(instance, rank)),
      wire_(wire),
      element_(comm::element_bytes(wire)),
      header_bytes_(header_bytes) {}

GroupTraffic StepTraffic::step(const StepRows& rows, std::span<const ShardLayer> shard,
                               std::span<const Dispatch> dispatch) const {
  GroupTraffic traffic;
  add_sizes(traffic);
  add_edges(traffic, rows);
  if (rows.block == 0) return traffic;
  add_attention(traffic, rows);
  add_context(traffic, rows);
  add_vocabulary(traffic, rows);
  add_weights(traffic, rows, shard);
  for (const Dispatch& layer : dispatch) add_experts(traffic, layer);
  return traffic;
}

void StepTraffic::add_sizes(GroupTraffic& traffic) const {
  if (instance_.dp == 1 || instance_.row_bound) return;
  add(traffic, name_of(Group::stage), Operation::all_gather, (instance_.ranks_per_stage() - 1) * 8);
}

void StepTraffic::add_attention(GroupTraffic& traffic, const StepRows& rows) const {
  if (instance_.tp == 1 || rows.batch == 0) return;
  const std::string group = name_of(Group::attention);
  const int64_t others = instance_.tp - 1;
  const int64_t bytes = others * group_block(instance_, rows.batch) * config_.hidden * element_;
  for (int64_t l = share_.layer_begin; l < share_.layer_end; ++l) {
    for (int64_t parts = config_.is_moe(l) ? 1 : 2; parts > 0; --parts) {
      add(traffic, group, Operation::all_gather, bytes);
      add(traffic, group, Operation::reduce_scatter, bytes);
    }
  }
  if (!last_stage() || rows.wanted == 0) return;
  add(traffic, group, Operation::all_gather, others * rows.group_wanted * config_.vocab * 4);
}

void StepTraffic::add_context(GroupTraffic& traffic, const StepRows& rows) const {
  if (instance_.dcp == 1) return;
  const int64_t heads = range_of(config_.mla.heads, share_.heads).size();
  for (int64_t l = share_.layer_begin; l < share_.layer_end; ++l) {
    if (config_.kinds[static_cast<size_t>(l)] != checkpoint::LayerKind::mla) continue;
    for (int64_t left = rows.batch; left > 0; left -= kContextTile) {
      const int64_t sums = std::min(left, kContextTile) * heads;
      const int64_t contexts = sums * config_.mla.kv_lora * element_;
      add(traffic, name_of(Group::context), Operation::all_to_all,
          (instance_.dcp - 1) * ((contexts + 3) / 4 * 4 + sums * 4));
    }
  }
}

void StepTraffic::add_vocabulary(GroupTraffic& traffic, const StepRows& rows) const {
  if (instance_.vocab == 1) return;
  const std::string group = name_of(Group::vocab);
  const int64_t others = instance_.vocab - 1;
  if (first_stage()) {
    add(traffic, group, Operation::all_gather, others * rows.block * 4);
    add(traffic, group, Operation::reduce_scatter, others * rows.block * config_.hidden * element_);
  }
  if (!last_stage() || rows.wanted_block == 0) return;
  const int64_t widest = range_of(config_.vocab, {0, instance_.vocab}).size();
  add(traffic, group, Operation::all_gather, others * rows.wanted_block * config_.hidden * element_);
  add(traffic, group, Operation::all_to_all, others * rows.wanted_block * widest * 4);
}

void StepTraffic::add_weights(GroupTraffic& traffic, const StepRows& rows, std::span<const ShardLayer> shard) const {
  const std::string group = name_of(Group::weights);
  const int64_t ranks = instance_.weight_shard;
  const int64_t padded = (ranks - 1) * rows.block;
  for (const ShardLayer& layer : shard) {
    int64_t gathered = 0;
    for (const ShardHalf& half : layer) {
      if (half.blocks.empty()) continue;
      if (!instance_.move_smaller || half.gather(ranks) <= half.move(ranks, rows.block, wire_)) {
        gathered += half.gather(ranks);
        continue;
      }
      for (const int64_t columns : half.reads) add(traffic, group, Operation::all_gather, padded * columns * element_);
      for (const ShardHalf::Block& b : half.blocks) {
        add(traffic, group, Operation::all_to_all, padded * b.columns * (b.rounded ? element_ : 4));
      }
    }
    if (gathered > 0) add(traffic, group + " gather", Operation::all_gather, gathered);
  }
}

void StepTraffic::add_experts(GroupTraffic& traffic, const Dispatch& dispatch) const {
  const std::string group = name_of(Group::experts);
  const int64_t row = config_.moe.latent.value_or(config_.hidden) * element_;
  add(traffic, group, Operation::all_to_all, (instance_.ep - 1) * 16);
  add(traffic, group, Operation::all_to_all, dispatch.pairs_sent * 8);
  add(traffic, group, Operation::all_to_all, dispatch.rows_sent * row);
  add(traffic, group + " combine", Operation::all_to_all, dispatch.pairs_received * row);
}

int64_t StepTraffic::bank_rows_before(int64_t stage) const {
  if (!config_.residual_block) return 0;
  int64_t layers = 0;
  for (int64_t s = 0; s < stage; ++s) layers += instance_.pipeline[static_cast<size_t>(s)];
  return (layers + *config_.residual_block - 1) / *config_.residual_block;
}

bool StepTraffic::is_eager(int64_t sending_stage) const {
  const std::vector<int64_t>& stages = instance_.eager_bank.stages;
  return instance_.eager_bank.enabled && std::find(stages.begin(), stages.end(), sending_stage) != stages.end();
}

void StepTraffic::add_messages(GroupTraffic& traffic, const std::string& group, Operation operation,
                               int64_t bytes) const {
  const bool sends = operation == Operation::send;
  add(traffic, group, operation, sends ? header_bytes_ : 0);
  if (bytes > 0) add(traffic, group, operation, sends ? bytes : 0);
}

void StepTraffic::add_edges(GroupTraffic& traffic, const StepRows& rows) const {
  const std::string proxy = name_of(Group::pipeline);
  const std::string bank = proxy + " bank";
  const int64_t own = own_rows(instance_, rows, place_.attention);
  const int64_t row = own * config_.hidden * element_;
  // The edge behind a stage, seen by either end: receives are counted as calls without bytes.
  const auto edge = [&](int64_t sender, Operation operation) {
    const int64_t inherited = is_eager(sender) ? bank_rows_before(sender) : 0;
    if (is_eager(sender)) add_messages(traffic, bank, operation, inherited * row);
    if (own > 0) add_messages(traffic, proxy, operation, (bank_rows_before(sender + 1) - inherited + 1) * row);
  };
  if (!first_stage()) edge(place_.stage - 1, Operation::receive);
  if (!last_stage()) edge(place_.stage, Operation::send);
}

}  // namespace trireme::layout
