#include "checkpoint/names.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace trireme::checkpoint {
namespace {

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

bool has_no_suffix(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "A_log" || last == "dt_bias" || last == "e_score_correction_bias";
}

// Cuts the suffix off `rest`; nothing if the name is not one of a weight.
std::optional<Part> take_part(std::string_view& rest) {
  if (has_no_suffix(rest)) return Part::value;
  for (const Part part : {Part::mx_codes, Part::fp8_scales, Part::mx_scales, Part::value}) {
    if (!take_suffix(rest, part_suffix(part))) continue;
    if (has_no_suffix(rest)) return std::nullopt;
    return part;
  }
  return std::nullopt;
}

// "layers.7.mlp.x" <-> "layers.7.block_sparse_moe.x", whichever the layer has.
std::string with_mlp_name(std::string_view name, const ModelConfig& config) {
  std::string_view rest = name;
  int64_t layer = -1;
  if (!take_prefix(rest, "layers.")) return std::string(name);
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (error != std::errc() || layer < 0 || layer >= config.layers) return std::string(name);
  rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
  const auto head = name.substr(0, name.size() - rest.size());
  if (!take_prefix(rest, ".mlp.") && !take_prefix(rest, ".block_sparse_moe.")) return std::string(name);
  std::string canonical(head);
  canonical += config.is_moe(layer) ? ".block_sparse_moe." : ".mlp.";
  return canonical.append(rest);
}

}  // namespace

std::string_view part_suffix(Part part) {
  switch (part) {
    case Part::value:
      return ".weight";
    case Part::mx_codes:
      return ".weight_packed";
    case Part::mx_scales:
      return ".weight_scale";
    case Part::fp8_scales:
      return ".weight_scale_inv";
  }
  return "";
}

StoredName read_stored_name(std::string_view name, const ModelConfig& config) {
  std::string_view rest = name;
  take_prefix(rest, "language_model.");
  const bool rooted = take_prefix(rest, "model.");
  if (rest.starts_with("vision_tower.") || rest.starts_with("mm_projector."))
    return {NameKind::vision, {}, Part::value};
  if (rooted == rest.starts_with("lm_head.")) return {};
  if (rest.ends_with(".weight_scale_2") || rest.ends_with(".input_scale")) return {NameKind::modelopt, {}, Part::value};
  for (const std::string_view half : {"proj", "norm"}) {
    std::string_view module = rest;
    if (take_suffix(module, "_res." + std::string(half) + "_weight")) {
      return {NameKind::text, std::string(module) + "_res_" + std::string(half), Part::value};
    }
  }
  const auto part = take_part(rest);
  if (!part) return {};
  return {NameKind::text, with_mlp_name(rest, config), *part};
}

}  // namespace trireme::checkpoint
