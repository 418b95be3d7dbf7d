#include "checkpoint/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/json_reader.h"

namespace trireme::checkpoint {
namespace {

constexpr const char* kK3 = "KimiK3ForConditionalGeneration";
constexpr const char* kLinear = "KimiLinearForCausalLM";

// Far above any real model, low enough that no product of two dimensions and no byte count overflows.
constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxExperts = 1'000'000;  // over all layers
constexpr int64_t kMaxPositions = int64_t{1} << 40;
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;

std::string find_architecture(const JsonObject& root) {
  std::string named = "none";
  if (root.has("architectures")) {
    for (const std::string& name : root.texts("architectures")) {
      if (name == kK3 || name == kLinear) return name;
      named = name;
    }
    root.fail("architectures", fmt::format("it names {}; it must name {} or {}", printable(named), kK3, kLinear));
  }
  const std::string type = root.text_or("model_type", "");
  if (type == "kimi_k3") return kK3;
  if (type == "kimi_linear") return kLinear;
  root.fail("architectures", fmt::format("it must name {} or {}", kK3, kLinear));
}

// heads * dim must stay in the range of one dimension.
void check_product(const JsonObject& at, const std::string& key, int64_t a, int64_t b) {
  if (a * b > kMaxDim) at.fail(key, fmt::format("times the number of heads ({}) it is over {}", b, kMaxDim));
}

void read_layer_lists(const JsonObject& at, ModelConfig& config) {
  std::vector<int> seen(static_cast<size_t>(config.layers), 0);
  config.kinds.assign(seen.size(), LayerKind::kda);
  for (const auto& [key, kind] :
       {std::pair{"full_attn_layers", LayerKind::mla}, std::pair{"kda_layers", LayerKind::kda}}) {
    for (const int64_t one_based : at.integers(key, 1, config.layers)) {
      const auto layer = static_cast<size_t>(one_based - 1);
      if (seen[layer]++ != 0) {
        at.fail(key, fmt::format("it names layer {} (from 1), which full_attn_layers or kda_layers already names",
                                 one_based));
      }
      config.kinds[layer] = kind;
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), 0);
  if (missing != seen.end()) {
    at.fail("kda_layers", fmt::format("layer {} (from 1) of {} is neither in full_attn_layers nor in kda_layers",
                                      missing - seen.begin() + 1, config.layers));
  }
}

// The list of transformers: "linear_attention" or "full_attention", one a layer.
void read_layer_types(const JsonObject& text, ModelConfig& config) {
  const auto types = text.texts("layer_types");
  if (static_cast<int64_t>(types.size()) != config.layers) {
    text.fail("layer_types", fmt::format("it has {} items; num_hidden_layers is {}", types.size(), config.layers));
  }
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      text.fail("layer_types",
                fmt::format("it holds \"{}\"; every item must be linear_attention or full_attention", printable(type)));
    }
    config.kinds.push_back(type == "full_attention" ? LayerKind::mla : LayerKind::kda);
  }
}

void read_kinds(const JsonObject& text, ModelConfig& config) {
  if (text.has("linear_attn_config") && text.object("linear_attn_config").has("full_attn_layers")) {
    read_layer_lists(text.object("linear_attn_config"), config);
  } else if (text.has("layer_types")) {
    read_layer_types(text, config);
  } else {
    text.fail("linear_attn_config", "it must list full_attn_layers and kda_layers (or there must be layer_types)");
  }
}

void read_kda(const JsonObject& text, ModelConfig& config) {
  KdaConfig& kda = config.kda;
  const bool nested = text.has("linear_attn_config");
  const JsonObject at = nested ? text.object("linear_attn_config") : text;
  const std::string dim_key = nested ? "head_dim" : "linear_head_dim";
  kda.heads = at.integer(nested ? "num_heads" : "linear_num_heads", 1, kMaxDim);
  kda.dim = at.integer(dim_key, 1, kMaxDim);
  check_product(at, dim_key, kda.dim, kda.heads);
  kda.conv_taps = at.integer(nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 1, 64);
  kda.full_rank_gate = at.boolean_or("use_full_rank_gate", false);
  if (at.has("gate_lower_bound")) {
    const double bound = at.number("gate_lower_bound");
    if (!(bound < 0 && bound >= -80)) at.fail("gate_lower_bound", "it must be below 0 and at least -80");
    kda.lower_bound = static_cast<float>(bound);
  } else {
    config.defaults.emplace("gate_lower_bound", "none, the softplus gate");
  }
}

void refuse_rotation(const JsonObject& text) {
  if (!text.boolean_or("mla_use_nope", true)) text.fail("mla_use_nope", "only true works: MLA without positions");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (text.has(key)) text.fail(key, "it must be absent or null: the model has no rotary positions");
  }
}

void read_mla(const JsonObject& text, MlaConfig& mla) {
  refuse_rotation(text);
  mla.heads = text.integer("num_attention_heads", 1, kMaxDim);
  if (text.optional_integer("num_key_value_heads", 1, kMaxDim).value_or(mla.heads) != mla.heads) {
    text.fail("num_key_value_heads", fmt::format("it must equal num_attention_heads ({})", mla.heads));
  }
  mla.q_lora = text.optional_integer("q_lora_rank", 1, kMaxDim);
  mla.kv_lora = text.integer("kv_lora_rank", 1, kMaxDim);
  mla.nope = text.integer("qk_nope_head_dim", 1, kMaxDim);
  mla.rope = text.integer("qk_rope_head_dim", 0, kMaxDim);
  mla.value = text.integer("v_head_dim", 1, kMaxDim);
  check_product(text, "qk_nope_head_dim", mla.nope + mla.value, mla.heads);
  check_product(text, "qk_rope_head_dim", mla.nope + mla.rope, mla.heads);
  mla.output_gate = text.boolean_or("mla_use_output_gate", false);
}

// Which layers are dense: two integers, or the list of transformers ("dense" and "sparse", one a layer).
void read_dense_layers(const JsonObject& text, ModelConfig& config) {
  config.moe_layer_freq = text.optional_integer("moe_layer_freq", 1, kMaxLayers).value_or(1);
  if (text.has("first_k_dense_replace") || !text.has("mlp_layer_types")) {
    config.first_dense = text.integer("first_k_dense_replace", 0, config.layers);
    return;
  }
  const auto types = text.texts("mlp_layer_types");
  if (static_cast<int64_t>(types.size()) != config.layers) {
    text.fail("mlp_layer_types", fmt::format("it has {} items; num_hidden_layers is {}", types.size(), config.layers));
  }
  const auto first_sparse = std::find_if(types.begin(), types.end(), [](const auto& type) { return type != "dense"; });
  if (std::any_of(first_sparse, types.end(), [](const auto& type) { return type != "sparse"; })) {
    text.fail("mlp_layer_types", "it must be \"dense\" for the first layers and \"sparse\" for all others");
  }
  config.first_dense = first_sparse - types.begin();
}

void refuse_routing(const JsonObject& text) {
  for (const auto& keys : {text.spelling({"num_expert_group", "n_group"}), std::string("topk_group")}) {
    if (text.optional_integer(keys, 0, kMaxDim).value_or(1) > 1) text.fail(keys, "only 1 works: no grouped routing");
  }
  if (text.text_or("moe_router_activation_func", "sigmoid") != "sigmoid") {
    text.fail("moe_router_activation_func", "only \"sigmoid\" works");
  }
  if (text.text_or("topk_method", "noaux_tc") != "noaux_tc") text.fail("topk_method", "only \"noaux_tc\" works");
}

void read_moe(const JsonObject& text, ModelConfig& config, int64_t moe_layers) {
  refuse_routing(text);
  MoeConfig& moe = config.moe;
  const std::string experts_key = text.spelling({"num_experts", "num_local_experts", "n_routed_experts"});
  moe.experts = text.integer(experts_key, 1, kMaxDim);
  if (moe.experts * moe_layers > kMaxExperts) {
    text.fail(experts_key, fmt::format("over {} layers that is more than {}", moe_layers, kMaxExperts));
  }
  moe.top_k = text.integer(text.spelling({"num_experts_per_token", "num_experts_per_tok"}), 1, moe.experts);
  moe.inter = text.integer("moe_intermediate_size", 1, kMaxDim);
  const std::string shared_key = text.spelling({"num_shared_experts", "n_shared_experts"});
  const int64_t shared = text.optional_integer(shared_key, 0, kMaxDim).value_or(0);
  if (shared * moe.inter > kMaxDim) {
    text.fail(shared_key, fmt::format("times moe_intermediate_size ({}) it is over {}", moe.inter, kMaxDim));
  }
  moe.shared_inter = shared * moe.inter;
  moe.latent = text.optional_integer("routed_expert_hidden_size", 1, kMaxDim);
  moe.latent_norm = text.boolean_or("latent_moe_use_norm", false);
  if (moe.latent_norm && !moe.latent) text.fail("latent_moe_use_norm", "it needs routed_expert_hidden_size");
  moe.renormalize = text.boolean_or(text.spelling({"moe_renormalize", "norm_topk_prob"}), true);
  moe.scaling = static_cast<float>(text.number_or("routed_scaling_factor", 1.0));
  if (!text.has("routed_scaling_factor")) config.defaults.emplace("routed_scaling_factor", "1");
}

float positive(const JsonObject& at, const std::string& key, double value) {
  const auto narrowed = static_cast<float>(value);
  if (!(narrowed > 0) || !(value < 1e30)) at.fail(key, "it must be a positive number");
  return narrowed;
}

void read_activation(const JsonObject& text, ModelConfig& config) {
  const std::string act = text.text("hidden_act");
  if (act != "situ" && act != "silu") text.fail("hidden_act", "it must be \"situ\" or \"silu\"");
  config.situ = act == "situ";
  if (!config.situ) return;
  config.situ_beta = positive(text, "activation_situ_beta", text.number("activation_situ_beta"));
  config.situ_linear_beta = positive(text, "activation_situ_linear_beta", text.number("activation_situ_linear_beta"));
}

void must_be(const JsonObject& at, const std::string& key, const std::string& right) {
  if (at.text_or(key, right) != right) at.fail(key, fmt::format("only \"{}\" works", right));
}

void must_be(const JsonObject& at, const std::string& key, int64_t right) {
  if (at.optional_integer(key, 0, kMaxDim).value_or(right) != right) at.fail(key, fmt::format("only {} works", right));
}

void check_block_fp8(const JsonObject& at) {
  must_be(at, "fmt", "e4m3");
  must_be(at, "scale", "weight_scale_inv");
  if (at.has("weight_block_size") && at.integers("weight_block_size", 1, kMaxDim) != std::vector<int64_t>{128, 128}) {
    at.fail("weight_block_size", "it must be [128, 128]");
  }
}

void check_mxfp4(const JsonObject& at) {
  must_be(at, "format", "mxfp4-pack-quantized");
  if (!at.has("weights")) return;
  const JsonObject weights = at.object("weights");
  must_be(weights, "type", "float");
  must_be(weights, "num_bits", 4);
  must_be(weights, "group_size", 32);
  must_be(weights, "scale_dtype", "torch.uint8");
  if (!weights.boolean_or("symmetric", true)) weights.fail("symmetric", "only true works: MXFP4 has no zero points");
}

// Formats are decided by the tensors that exist; what says that the tensors mean something else is refused here.
void check_quantization(const JsonObject& at) {
  if (!at.has("quantization_config")) return;
  const JsonObject quantization = at.object("quantization_config");
  const std::string method = quantization.text_or("quant_method", "");
  if (method == "modelopt" || quantization.has("quant_algo") || quantization.has("quantized_layers")) {
    quantization.fail("quant_method",
                      "ModelOpt checkpoints (NVFP4, FP8_PB_WO) are not supported; use MXFP4, block-FP8 or BF16");
  }
  if (quantization.has("quant_method") && method != "compressed-tensors" && method != "fp8") {
    quantization.fail("quant_method", "only \"compressed-tensors\" (MXFP4) and \"fp8\" (block-FP8) work");
  }
  check_mxfp4(quantization);
  check_block_fp8(quantization);
  if (quantization.has("block_fp8")) check_block_fp8(quantization.object("block_fp8"));
  if (!quantization.has("config_groups")) return;
  const JsonObject groups = quantization.object("config_groups");
  for (const std::string& name : groups.keys()) check_mxfp4(groups.object(name));
}

// It may stand on top and in text_config, but not say two things.
bool read_tied_embeddings(const JsonObject& root, const JsonObject& text) {
  const std::string key = "tie_word_embeddings";
  const bool tied = (root.has(key) ? root : text).boolean_or(key, false);
  if (text.boolean_or(key, tied) != tied) text.fail(key, fmt::format("on the top level it is {}", tied));
  return tied;
}

void add_eos(const JsonObject& at, ModelConfig& config) {
  if (!at.has("eos_token_id")) return;
  for (const int64_t id : at.integers("eos_token_id", 0, config.vocab - 1)) {
    if (std::find(config.eos_tokens.begin(), config.eos_tokens.end(), id) == config.eos_tokens.end()) {
      config.eos_tokens.push_back(id);
    }
  }
}

// The top level wins over text_config.
void read_tokens(const JsonObject& root, const JsonObject& text, ModelConfig& config) {
  const auto either = [&](const char* key) {
    return (root.has(key) ? root : text).optional_integer(key, 0, config.vocab - 1).value_or(-1);
  };
  config.bos_token = either("bos_token_id");
  config.pad_token = either("pad_token_id");
  add_eos(root.has("eos_token_id") ? root : text, config);
}

ModelConfig read_model(const JsonObject& root, const JsonObject& text, const std::string& architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.hidden = text.integer("hidden_size", 1, kMaxDim);
  config.layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.vocab = text.integer("vocab_size", 1, kMaxVocab);
  config.max_positions = text.integer(text.spelling({"max_position_embeddings", "model_max_length"}), 1, kMaxPositions);
  config.eps = positive(text, "rms_norm_eps", text.number("rms_norm_eps"));
  config.latent_eps = positive(text, "mla_latent_norm_eps", text.number_or("mla_latent_norm_eps", 1e-6));
  config.residual_block = text.optional_integer("attn_res_block_size", 1, kMaxLayers);
  config.tied_embeddings = read_tied_embeddings(root, text);
  if (text.optional_integer("num_nextn_predict_layers", 0, kMaxLayers).value_or(0) > 0) {
    text.fail("num_nextn_predict_layers", "only 0 works: there is no support for MTP layers");
  }
  if (text.boolean_or("attention_bias", false)) text.fail("attention_bias", "only false works: no layer has biases");
  read_activation(text, config);
  read_kinds(text, config);
  if (std::count(config.kinds.begin(), config.kinds.end(), LayerKind::kda) > 0) read_kda(text, config);
  if (std::count(config.kinds.begin(), config.kinds.end(), LayerKind::mla) > 0) read_mla(text, config.mla);
  read_dense_layers(text, config);
  int64_t moe_layers = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) moe_layers += config.is_moe(layer) ? 1 : 0;
  if (moe_layers < config.layers) config.dense_inter = text.integer("intermediate_size", 1, kMaxDim);
  if (moe_layers > 0) read_moe(text, config, moe_layers);
  read_tokens(root, text, config);
  return config;
}

}  // namespace

bool ModelConfig::is_moe(int64_t layer) const { return layer >= first_dense && layer % moe_layer_freq == 0; }

int64_t ModelConfig::bank_rows() const { return residual_block ? (layers + *residual_block - 1) / *residual_block : 0; }

ModelConfig parse_config(const std::string& json, const std::string& where) {
  const auto parsed = parse_json_object(json, where);
  const JsonObject root(parsed, where, "");
  const std::string architecture = find_architecture(root);
  check_quantization(root);
  if (architecture == kLinear) return read_model(root, root, architecture);
  const JsonObject text = root.object("text_config");
  check_quantization(text);
  return read_model(root, text, architecture);
}

ModelConfig read_config(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error))
    throw BadInput(fmt::format("{}: there is no such folder", dir.string()));
  const auto path = dir / "config.json";
  ModelConfig config = parse_config(read_text_file(path, kMaxConfigBytes), path.string());
  const auto generation = dir / "generation_config.json";
  if (has_entry(generation)) {
    const auto parsed = parse_json_object(read_text_file(generation, kMaxConfigBytes), generation.string());
    add_eos(JsonObject(parsed, generation.string(), ""), config);
  }
  return config;
}

}  // namespace trireme::checkpoint
