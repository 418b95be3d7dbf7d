// The names under which checkpoints store the catalogue's tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/config.h"

namespace trireme::checkpoint {

// Which part of a weight a stored tensor is.
enum class Part : uint8_t {
  value,       // X.weight, or X itself for A_log, dt_bias and e_score_correction_bias
  mx_codes,    // X.weight_packed
  mx_scales,   // X.weight_scale
  fp8_scales,  // X.weight_scale_inv
};

std::string_view part_suffix(Part part);  // ".weight", ...

enum class NameKind : uint8_t {
  text,      // may be of the text model; whether the catalogue has it is another question
  vision,    // vision_tower.*, mm_projector.*
  modelopt,  // X.weight_scale_2, X.input_scale: a format that is not supported
  unknown,
};

struct StoredName {
  NameKind kind = NameKind::unknown;
  std::string entry;  // text: the canonical name, as CatalogueEntry::name
  Part part = Part::value;
};

// Reads a stored name. Accepted spellings: roots "language_model.model." and "model." ("language_model." or nothing
// before lm_head); "X_res.proj_weight" and "X_res.norm_weight" for X_res_proj and X_res_norm; "mlp." for
// "block_sparse_moe." and the other way around, by whether the layer is MoE.
StoredName read_stored_name(std::string_view name, const ModelConfig& config);

}  // namespace trireme::checkpoint
