#include "layout/share.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"

namespace trireme::layout {
namespace {

using checkpoint::CatalogueEntry;
using checkpoint::ModelConfig;
using checkpoint::Split;
using Tensors = checkpoint::Group;

// "q_proj" of "layers.3.self_attn.q_proj".
std::string_view last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// 17 of "layers.3.block_sparse_moe.experts.17.w1".
int64_t expert_of(const CatalogueEntry& entry) {
  const std::string_view name = entry.name;
  const std::string_view mark = ".experts.";
  const size_t at = name.find(mark);
  int64_t expert = -1;
  if (at != std::string_view::npos) {
    const std::string_view digits = name.substr(at + mark.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), expert);
  }
  if (expert < 0) throw Failure(fmt::format("{} names no expert", entry.name));
  return expert;
}

bool in_stage(const CatalogueEntry& entry, const ModelConfig& config, const RankShare& share) {
  const int64_t end = share.layer_end < 0 ? config.layers : share.layer_end;
  if (entry.layer >= 0) return share.layer_begin <= entry.layer && entry.layer < end;
  const bool first = share.layer_begin == 0;
  const bool last = end == config.layers;
  if (entry.group == Tensors::embedding) return first || (last && config.tied_embeddings);
  return last;
}

bool is_query_matrix(const CatalogueEntry& entry) {
  const std::string_view part = last_part(entry.name);
  return entry.group == Tensors::mla && (part == "q_b_proj" || part == "q_proj" || part == "kv_b_proj");
}

// Rows or columns [begin, end) of `total`, of which each head has total / heads.
Range head_range(int64_t total, const CatalogueEntry& entry, const ModelConfig& config, const RankShare& share) {
  const int64_t heads = entry.group == Tensors::kda ? config.kda.heads : config.mla.heads;
  if (heads < 1 || total % heads != 0) {
    throw Failure(fmt::format("{}: {} rows do not divide over {} heads", entry.name, total, heads));
  }
  const Range range = range_of(heads, is_query_matrix(entry) ? share.query_heads : share.heads);
  return {range.begin * (total / heads), range.end * (total / heads)};
}

Range channel_range(int64_t total, const CatalogueEntry& entry, const RankShare& share) {
  return entry.group == Tensors::dense ? range_of(total, share.heads) : Range{0, total};
}

}  // namespace

Range range_of(int64_t total, const Part& part) {
  const int64_t each = (total + part.count - 1) / part.count;
  return {std::min(part.index * each, total), std::min((part.index + 1) * each, total)};
}

bool is_sharded(const CatalogueEntry& entry, const RankShare& share) {
  // Layer 0 runs first: nothing before it could hide the gathering of its weights.
  if (share.weights.whole() || entry.layer < 1 || entry.shape.size() != 2) return false;
  if (entry.group == Tensors::latent || entry.group == Tensors::shared) return true;
  if (!share.heads.whole()) return false;
  const auto is_one_of = [part = last_part(entry.name)](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), part) != names.end();
  };
  if (entry.group == Tensors::kda) {
    return is_one_of({"q_proj", "k_proj", "v_proj", "f_b_proj", "g_proj", "g_b_proj", "o_proj"});
  }
  return entry.group == Tensors::mla && is_one_of({"q_b_proj", "q_proj", "g_proj", "o_proj"});
}

std::optional<Slice> slice_of(const CatalogueEntry& entry, const ModelConfig& config, const RankShare& share) {
  if (!in_stage(entry, config, share)) return std::nullopt;
  Range rows{0, entry.shape[0]};
  Range columns{0, entry.shape[0] > 0 ? entry.elements() / entry.shape[0] : 0};
  switch (entry.split) {
    case Split::replicated:
      break;
    case Split::head_rows:
      rows = head_range(rows.end, entry, config, share);
      break;
    case Split::head_columns:
      columns = head_range(columns.end, entry, config, share);
      break;
    case Split::inter_rows:
      rows = channel_range(rows.end, entry, share);
      break;
    case Split::inter_columns:
      columns = channel_range(columns.end, entry, share);
      break;
    case Split::expert: {
      const Range experts = range_of(config.moe.experts, share.experts);
      const int64_t expert = expert_of(entry);
      if (expert < experts.begin || expert >= experts.end) return std::nullopt;
      break;
    }
    case Split::vocab_rows:
      rows = range_of(rows.end, share.vocab);
      break;
  }
  // Only matrices that are whole so far are sharded.
  if (is_sharded(entry, share)) rows = range_of(rows.size(), share.weights);
  if (rows.size() == 0 || columns.size() == 0) return std::nullopt;
  return Slice{rows.begin, rows.size(), columns.begin, columns.size()};
}

ModelConfig local_config(const ModelConfig& config, const RankShare& share) {
  ModelConfig local = config;
  local.kda.heads = range_of(config.kda.heads, share.heads).size();
  local.mla.heads = range_of(config.mla.heads, share.heads).size();
  return local;
}

}  // namespace trireme::layout
