#include "ledger/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "ledger/forms.h"

namespace trireme::ledger {
namespace {

using checkpoint::Group;
using checkpoint::LayerKind;

int64_t layers_of(const checkpoint::ModelConfig& config, LayerKind kind) {
  int64_t count = 0;
  for (const LayerKind k : config.kinds) count += k == kind ? 1 : 0;
  return count;
}

// Adds up the tensors of one line.
struct Sum {
  int64_t bytes = 0;
  int64_t tensors = 0;
};

// W_kc of the heads whose queries the rank computes, W_vc of its own heads.
int64_t absorbed_bytes(const checkpoint::MlaConfig& mla, const layout::RankShare& share, const ops::Ops& ops) {
  const WeightFormat format = derived_format(ops.precision());
  return mla.heads / share.query_heads.count * ops.packed_bytes(format, mla.kv_lora, mla.nope) +
         mla.heads / share.heads.count * ops.packed_bytes(format, mla.value, mla.kv_lora);
}

// Adds up the weights of one rank, line by line.
class Weights {
 public:
  Weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, const layout::RankShare& share)
      : checkpoint_(checkpoint), config_(checkpoint.config()), ops_(ops), share_(share) {
    for (const checkpoint::CatalogueEntry& entry : checkpoint::catalogue(config_)) add(entry);
    const bool last = share.layer_end < 0 || share.layer_end == config_.layers;
    if (config_.tied_embeddings && last) {
      const WeightView table = checkpoint.stored("embed_tokens");
      const int64_t rows = layout::range_of(config_.vocab, share.vocab).size();
      charge(kHeadLine, ops.packed_bytes(table.format, rows, table.cols));
    }
    if (share.weights.count > 1) {
      int64_t largest = 0;
      for (const auto& [layer, bytes] : shard_) largest = std::max(largest, bytes);
      staging_ = largest * share.weights.count;
      charge(kStagingLine, 2 * staging_);
    }
  }

  std::vector<Line> lines() const {
    std::vector<Line> lines;
    for (const auto& [name, sum] : sums_) lines.push_back({name, sum.bytes, formula(name, sum)});
    return lines;
  }

 private:
  void charge(const std::string& line, int64_t bytes) {
    sums_[line].bytes += bytes;
    ++sums_[line].tensors;
  }

  void add(const checkpoint::CatalogueEntry& entry) {
    const auto slice = layout::slice_of(entry, config_, share_);
    if (!slice) return;
    switch (form_of(entry)) {
      case Form::table:
        if (share_.layer_begin > 0) break;  // with tied embeddings the last stage packs it as its head, below
        charge(weight_line(Group::embedding),
               weight_bytes(checkpoint_.stored(entry.name).format, slice->rows, slice->cols));
        break;
      case Form::packed: {
        const WeightView stored = checkpoint_.stored(entry.name);
        if (layout::is_sharded(entry, share_)) {
          const int64_t bytes = shard_block_bytes(stored, share_, ops_);
          charge(kShardLine, bytes);
          shard_[entry.layer] += bytes;
        } else {
          charge(weight_line(entry.group), ops_.packed_bytes(slice_format(stored, *slice), slice->rows, slice->cols));
        }
        break;
      }
      case Form::vector:
        charge(kVectorLine, slice->rows * slice->cols * 4);
        break;
      case Form::absorbed:
        charge(kDerivedLine, absorbed_bytes(config_.mla, share_, ops_));
        break;
      case Form::folded:
        break;
    }
  }

  std::string formula(const std::string& name, const Sum& sum) const {
    if (name == kVectorLine) return fmt::format("{} norms, scorers, convolutions and biases in float32", sum.tensors);
    if (name == weight_line(Group::embedding)) return "rows as stored";
    if (name == kShardLine) return fmt::format("1/{} of {} matrices", share_.weights.count, sum.tensors);
    if (name == kStagingLine) return fmt::format("2 buffers x {} B, the largest sharded layer", staging_);
    if (name == kDerivedLine) {
      return fmt::format("{} layers x ({} heads x W_kc {}x{} + {} heads x W_vc {}x{}) in {}", sum.tensors,
                         config_.mla.heads / share_.query_heads.count, config_.mla.kv_lora, config_.mla.nope,
                         config_.mla.heads / share_.heads.count, config_.mla.value, config_.mla.kv_lora,
                         weight_format_name(derived_format(ops_.precision())));
    }
    return fmt::format("{} matrices as {} packs them", sum.tensors, ops_.name());
  }

  const checkpoint::Checkpoint& checkpoint_;
  const checkpoint::ModelConfig& config_;
  const ops::Ops& ops_;
  const layout::RankShare& share_;
  std::map<std::string, Sum> sums_;
  std::map<int64_t, int64_t> shard_;  // bytes of the rank's blocks, by layer
  int64_t staging_ = 0;               // bytes of one staging buffer
};

}  // namespace

Form form_of(const checkpoint::CatalogueEntry& entry) {
  if (entry.name == "embed_tokens") return Form::table;
  if (entry.name.ends_with("kv_b_proj")) return Form::absorbed;
  if (entry.name.ends_with("_res_proj")) return Form::folded;
  return entry.shape.size() == 2 && entry.group != Group::norms ? Form::packed : Form::vector;
}

std::string weight_line(Group group) {
  switch (group) {
    case Group::embedding:
      return "weights.embedding";
    case Group::kda:
      return "weights.kda";
    case Group::mla:
      return "weights.mla";
    case Group::dense:
      return "weights.dense";
    case Group::router:
      return "weights.router";
    case Group::latent:
      return "weights.latent";
    case Group::shared:
      return "weights.shared";
    case Group::experts:
      return "weights.experts";
    case Group::norms:
      return kVectorLine;
    case Group::head:
      return kHeadLine;
  }
  throw Failure("a tensor group without a line in the memory ledger");
}

WeightFormat slice_format(const WeightView& stored, const layout::Slice& slice) {
  if (slice.cols == stored.cols) return stored.format;
  return columns_format(stored.format, stored.cols, slice.col_begin, slice.cols);
}

int64_t shard_block_bytes(const WeightView& stored, const layout::RankShare& share, const ops::Ops& ops) {
  return ops.packed_bytes(stored.format, layout::range_of(stored.rows, {0, share.weights.count}).size(), stored.cols);
}

WeightFormat derived_format(ops::Precision precision) {
  return precision == ops::Precision::bf16 ? WeightFormat::bf16 : WeightFormat::f32;
}

int64_t page_bytes(const checkpoint::ModelConfig& config, ops::Precision precision) {
  const int64_t element = precision == ops::Precision::bf16 ? 2 : 4;
  return layers_of(config, LayerKind::mla) * ops::kPageTokens * config.mla.cache_width() * element;
}

int64_t kda_slot_bytes(const checkpoint::ModelConfig& config) {
  const checkpoint::KdaConfig& kda = config.kda;
  const int64_t recurrent = kda.heads * kda.dim * kda.dim;
  const int64_t conv = (kda.conv_taps - 1) * 3 * kda.width();
  return layers_of(config, LayerKind::kda) * (recurrent + conv) * 4;
}

int64_t Plan::total() const {
  int64_t sum = 0;
  for (const Line& l : lines) sum += l.bytes;
  return sum;
}

const Line& Plan::line(const std::string& name) const {
  for (const Line& l : lines) {
    if (l.name == name) return l;
  }
  throw Failure(fmt::format("the memory plan has no line \"{}\"", name));
}

checkpoint::ModelConfig pool_config(const checkpoint::ModelConfig& config, const layout::RankShare& share) {
  checkpoint::ModelConfig part = layout::local_config(config, share);
  const int64_t end = share.layer_end < 0 ? config.layers : share.layer_end;
  part.kinds.assign(config.kinds.begin() + share.layer_begin, config.kinds.begin() + end);
  part.layers = end - share.layer_begin;
  return part;
}

Plan plan_memory(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, const PoolSizes& pools,
                 const layout::RankShare& share) {
  Plan plan{Weights(checkpoint, ops, share).lines()};
  const checkpoint::ModelConfig config = pool_config(checkpoint.config(), share);
  const int64_t element = ops.precision() == ops::Precision::bf16 ? 2 : 4;
  plan.lines.push_back(
      {kPageLine, pools.pages * page_bytes(config, ops.precision()),
       fmt::format("{} pages x {} layers x {} tokens x {} x {} B", pools.pages, layers_of(config, LayerKind::mla),
                   ops::kPageTokens, config.mla.cache_width(), element)});
  plan.lines.push_back({kStateLine, pools.kda_slots * kda_slot_bytes(config),
                        fmt::format("{} slots x {} layers x ({} heads x {}x{} + {} taps x {}) x 4 B", pools.kda_slots,
                                    layers_of(config, LayerKind::kda), config.kda.heads, config.kda.dim, config.kda.dim,
                                    config.kda.conv_taps - 1, 3 * config.kda.width())});
  return plan;
}

Account::Account(Plan plan) : plan_(std::move(plan)) {}

Buffer Account::take(const std::string& line, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const int64_t planned = plan_.line(line).bytes;
    int64_t& taken = taken_[line];
    if (bytes < 0 || bytes > planned - taken) {
      throw Failure(fmt::format("memory line {} holds {} bytes, {} of them taken: {} more do not fit", line, planned,
                                taken, bytes));
    }
    taken += bytes;
  }
  try {
    return Buffer(bytes);
  } catch (const std::bad_alloc&) {
    throw Failure(fmt::format("out of memory: the system does not give {} bytes for memory line {}", bytes, line));
  }
}

int64_t Account::taken(const std::string& line) const {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(line);
  return found == taken_.end() ? 0 : found->second;
}

}  // namespace trireme::ledger
