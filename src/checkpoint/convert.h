// Makes a block-FP8 checkpoint out of one in F32, F16 or BF16 (whose routed experts may be MXFP4).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/catalogue.h"
#include "tensor/fp8.h"

namespace trireme::checkpoint {

// The groups of matrices that can be converted.
enum class Fp8Group : uint8_t {
  attn,   // KDA q, k, v, g, o; MLA q_a, q_b (or q), kv_a, kv_b, g, o
  moe,    // the shared expert and the latent down and up projections
  dense,  // the MLP of dense layers
};

std::string_view fp8_group_name(Fp8Group group);

// "attn,moe,dense" in any order, each at most once. Throws BadInput naming a part that is unknown, empty or there
// twice.
std::set<Fp8Group> parse_fp8_groups(const std::string& list);

// Whether an entry becomes block-FP8 when `group` is converted. Router, norms, scorers, low-rank gates (f_a, f_b, g_a,
// g_b), b_proj, convolutions, A_log, dt_bias, routed experts, embedding and head never do.
bool in_fp8_group(const CatalogueEntry& entry, Fp8Group group);

struct ConvertedGroup {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;  // scales included
  QuantizationError error;
};

struct ConvertReport {
  std::map<Fp8Group, ConvertedGroup> groups;
  int64_t bytes_before = 0;  // of all tensors, vision included
  int64_t bytes_after = 0;
  int64_t files = 0;  // safetensors files written
};

// Writes into `to` (absent or an empty folder): every shard of `from` under its name with the matrices of `groups` as
// block-FP8 (X.weight F8_E4M3, X.weight_scale_inv F32 after it) and all other tensors byte for byte, a new index,
// config.json with a note of the format, and the folder's other files except further .safetensors. Works on `threads`
// threads; the bytes do not depend on it. If it fails, what it wrote is removed. Throws BadInput if `from` is no valid
// checkpoint or a chosen matrix is already FP8 or MXFP4 or holds infinities or NaN, or if `to` is not empty or is
// `from`; Failure if writing fails.
ConvertReport convert_to_fp8(const std::filesystem::path& from, const std::filesystem::path& to,
                             const std::set<Fp8Group>& groups, int threads);

// config.json with a note under quantization_config (of text_config, if there is one) that these groups are block-FP8.
std::string add_fp8_note(const std::string& config_json, const std::set<Fp8Group>& groups, const std::string& where);

}  // namespace trireme::checkpoint
