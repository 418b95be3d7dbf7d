#include "cli/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>

#include "checkpoint/checkpoint.h"
#include "checkpoint/summary.h"
#include "cli/engine_flags.h"

namespace trireme::cli {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GroupSummary;
using checkpoint::LayerKind;
using checkpoint::ModelConfig;
using checkpoint::Summary;
using nlohmann::ordered_json;

int64_t count_kind(const ModelConfig& config, LayerKind kind) {
  return std::count(config.kinds.begin(), config.kinds.end(), kind);
}

int64_t count_moe(const ModelConfig& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) count += config.is_moe(layer) ? 1 : 0;
  return count;
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json config_json(const ModelConfig& config) {
  const auto& [kda, mla, moe] = std::tie(config.kda, config.mla, config.moe);
  ordered_json out;
  out["architecture"] = config.architecture;
  out["layers"] = {{"total", config.layers},
                   {"kda", count_kind(config, LayerKind::kda)},
                   {"mla", count_kind(config, LayerKind::mla)},
                   {"dense", config.layers - count_moe(config)},
                   {"moe", count_moe(config)}};
  out["hidden"] = config.hidden;
  out["vocab"] = config.vocab;
  out["max_positions"] = config.max_positions;
  out["activation"] = config.situ ? "situ" : "swiglu";
  out["residual_block"] = or_null(config.residual_block);
  out["dense_inter"] = config.dense_inter;
  out["kda"] = {{"heads", kda.heads},
                {"dim", kda.dim},
                {"conv_taps", kda.conv_taps},
                {"gate", kda.lower_bound ? "bounded" : "softplus"},
                {"full_rank_gate", kda.full_rank_gate}};
  out["mla"] = {{"heads", mla.heads},
                {"q_lora", or_null(mla.q_lora)},
                {"kv_lora", mla.kv_lora},
                {"nope", mla.nope},
                {"rope", mla.rope},
                {"value", mla.value},
                {"output_gate", mla.output_gate}};
  out["moe"] = {{"experts", moe.experts},
                {"top_k", moe.top_k},
                {"inter", moe.inter},
                {"shared_inter", moe.shared_inter},
                {"latent", or_null(moe.latent)},
                {"scaling", moe.scaling}};
  out["eos_tokens"] = config.eos_tokens;
  out["defaults"] = ordered_json::object();
  for (const auto& [key, taken] : config.defaults) out["defaults"][key] = taken;
  return out;
}

ordered_json group_json(const GroupSummary& group) {
  ordered_json formats = ordered_json::object();
  for (const auto& [format, tensors] : group.formats) formats[std::string(weight_format_name(format))] = tensors;
  return {{"tensors", group.tensors}, {"parameters", group.parameters}, {"bytes", group.bytes}, {"formats", formats}};
}

void print_json(const Checkpoint& checkpoint, const Summary& summary) {
  ordered_json out = config_json(checkpoint.config());
  out["parameters"] = {{"total", summary.parameters.used},
                       {"active", summary.parameters.active},
                       {"padding", summary.parameters.padding}};
  out["bytes"] = summary.total.bytes;
  out["groups"] = ordered_json::object();
  for (const auto& [group, counts] : summary.groups) out["groups"][std::string(group_name(group))] = group_json(counts);
  out["files"] = ordered_json::array();
  for (const auto& shard : checkpoint.shards()) {
    out["files"].push_back({{"name", shard.name}, {"bytes", shard.bytes}, {"tensors", shard.tensors}});
  }
  out["vision_tensors_skipped"] = checkpoint.vision_tensors();
  fmt::print("{}\n", out.dump(2));
}

// 24950472 -> "24,950,472"; `number` is not negative.
std::string grouped(int64_t number) {
  if (number < 1000) return std::to_string(number);
  return fmt::format("{},{:03}", grouped(number / 1000), number % 1000);
}

void print_dimensions(const ModelConfig& config) {
  fmt::print("{}\n", config.architecture);
  fmt::print("  layers   {}: {} KDA, {} MLA; {} dense, {} MoE\n", config.layers, count_kind(config, LayerKind::kda),
             count_kind(config, LayerKind::mla), config.layers - count_moe(config), count_moe(config));
  fmt::print("  widths   hidden {}, vocabulary {}, dense {}; {}; up to {} tokens\n", config.hidden, config.vocab,
             config.dense_inter, config.situ ? "SiTU" : "SwiGLU", grouped(config.max_positions));
  if (config.residual_block) {
    fmt::print("  bank     a row every {} layers, {} rows\n", *config.residual_block, config.bank_rows());
  }
  if (config.kda.heads > 0) {
    fmt::print("  KDA      {} heads of {}, {} taps, {} decay, {} output gate\n", config.kda.heads, config.kda.dim,
               config.kda.conv_taps, config.kda.lower_bound ? "bounded" : "softplus",
               config.kda.full_rank_gate ? "full" : "low-rank");
  }
  if (config.mla.heads > 0) {
    fmt::print("  MLA      {} heads, query latent {}, cache {} + {}, query/key {} + {}, value {}{}\n", config.mla.heads,
               config.mla.q_lora ? std::to_string(*config.mla.q_lora) : "none", config.mla.kv_lora, config.mla.rope,
               config.mla.nope, config.mla.rope, config.mla.value, config.mla.output_gate ? ", output gate" : "");
  }
  if (config.moe.experts > 0) {
    fmt::print("  MoE      {} experts, top {}, width {}, latent {}, shared {}\n", config.moe.experts, config.moe.top_k,
               config.moe.inter, config.moe.latent ? std::to_string(*config.moe.latent) : "none",
               config.moe.shared_inter);
  }
  for (const auto& [key, taken] : config.defaults)
    fmt::print("  default  {}: {} (config.json does not say)\n", key, taken);
}

std::string formats_text(const GroupSummary& group) {
  std::string text;
  for (const auto& [format, tensors] : group.formats) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", weight_format_name(format), tensors);
  }
  return text;
}

void print_text(const Checkpoint& checkpoint, const Summary& summary) {
  print_dimensions(checkpoint.config());
  fmt::print("\n{:<10} {:>9} {:>21} {:>21}  {}\n", "group", "tensors", "parameters", "bytes", "formats (tensors)");
  const auto line = [](std::string_view name, const GroupSummary& group) {
    fmt::print("{:<10} {:>9} {:>21} {:>21}  {}\n", name, grouped(group.tensors), grouped(group.parameters),
               grouped(group.bytes), formats_text(group));
  };
  for (const auto& [group, counts] : summary.groups) line(group_name(group), counts);
  line("all", summary.total);
  fmt::print("\n{} parameters, {} of them used for a token; {} elements of padding\n", grouped(summary.parameters.used),
             grouped(summary.parameters.active), grouped(summary.parameters.padding));
  for (const auto& shard : checkpoint.shards()) {
    fmt::print("{}: {} bytes, {} tensors\n", shard.name, grouped(shard.bytes), grouped(shard.tensors));
  }
  fmt::print("{} vision tensors skipped\n", grouped(checkpoint.vision_tensors()));
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "What a checkpoint holds: dimensions, parameters, formats, files");
  const auto dir = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("dir", *dir, "Folder of the checkpoint")->required()->check(not_empty());
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([dir, json] {
    const Checkpoint checkpoint = Checkpoint::open(*dir);
    const Summary summary = summarize(checkpoint);
    if (*json) {
      print_json(checkpoint, summary);
    } else {
      print_text(checkpoint, summary);
    }
  });
}

}  // namespace trireme::cli
