#include "ledger/ledger.h"

#include <fmt/format.h>

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

int64_t absorbed_bytes(const checkpoint::MlaConfig& mla, const ops::Ops& ops) {
  const WeightFormat format = derived_format(ops.precision());
  return mla.heads *
         (ops.packed_bytes(format, mla.kv_lora, mla.nope) + ops.packed_bytes(format, mla.value, mla.kv_lora));
}

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

int64_t vector_elements(const checkpoint::CatalogueEntry& entry, const checkpoint::ModelConfig& config) {
  if (entry.name.ends_with("A_log")) return config.kda.heads;
  int64_t count = 1;
  for (const int64_t extent : entry.shape) count *= extent;
  return count;
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

Plan plan_memory(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, const PoolSizes& pools) {
  const checkpoint::ModelConfig& config = checkpoint.config();
  const int64_t kda_layers = layers_of(config, LayerKind::kda);
  const int64_t mla_layers = layers_of(config, LayerKind::mla);
  std::map<std::string, Sum> sums;
  const auto charge = [&](const std::string& line, int64_t bytes) {
    sums[line].bytes += bytes;
    ++sums[line].tensors;
  };
  const auto packed = [&](const std::string& name) {
    const WeightView w = checkpoint.weight(name);
    return ops.packed_bytes(w.format, w.rows, w.cols);
  };
  for (const checkpoint::CatalogueEntry& entry : checkpoint::catalogue(config)) {
    switch (form_of(entry)) {
      case Form::table: {
        const WeightView w = checkpoint.weight(entry.name);
        charge(weight_line(Group::embedding), weight_bytes(w.format, w.rows, w.cols));
        break;
      }
      case Form::packed:
        charge(weight_line(entry.group), packed(entry.name));
        break;
      case Form::vector:
        charge(kVectorLine, vector_elements(entry, config) * 4);
        break;
      case Form::absorbed:
        charge(kDerivedLine, absorbed_bytes(config.mla, ops));
        break;
      case Form::folded:
        break;
    }
  }
  if (config.tied_embeddings) charge(kHeadLine, packed("embed_tokens"));

  Plan plan;
  for (const auto& [name, sum] : sums) {
    std::string how = fmt::format("{} matrices as {} packs them", sum.tensors, ops.name());
    if (name == kVectorLine) how = fmt::format("{} norms, scorers, convolutions and biases in float32", sum.tensors);
    if (name == weight_line(Group::embedding)) how = "rows as stored";
    if (name == kDerivedLine) {
      how = fmt::format("{} layers x {} heads x (W_kc {}x{} + W_vc {}x{}) in {}", sum.tensors, config.mla.heads,
                        config.mla.kv_lora, config.mla.nope, config.mla.value, config.mla.kv_lora,
                        weight_format_name(derived_format(ops.precision())));
    }
    plan.lines.push_back({name, sum.bytes, std::move(how)});
  }
  const int64_t element = ops.precision() == ops::Precision::bf16 ? 2 : 4;
  plan.lines.push_back({kPageLine, pools.pages * page_bytes(config, ops.precision()),
                        fmt::format("{} pages x {} layers x {} tokens x {} x {} B", pools.pages, mla_layers,
                                    ops::kPageTokens, config.mla.cache_width(), element)});
  plan.lines.push_back({kStateLine, pools.kda_slots * kda_slot_bytes(config),
                        fmt::format("{} slots x {} layers x ({} heads x {}x{} + {} taps x {}) x 4 B", pools.kda_slots,
                                    kda_layers, config.kda.heads, config.kda.dim, config.kda.dim,
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
  return Buffer(bytes);
}

int64_t Account::taken(const std::string& line) const {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(line);
  return found == taken_.end() ? 0 : found->second;
}

}  // namespace trireme::ledger
