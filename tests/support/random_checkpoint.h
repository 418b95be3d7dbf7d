// Seeded random checkpoints of the K3 family, as small as a test wants them, written to a folder as releases are.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "checkpoint/convert.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace trireme::testing {

enum class Storage : uint8_t {
  bf16,   // every matrix
  mxfp4,  // routed experts; everything else BF16
  fp8,    // as mxfp4, then attention, shared experts, latent projections and dense MLPs as block-FP8
};

// What a random model looks like. MXFP4 needs expert_inter and latent in multiples of 32.
struct ModelRecipe {
  bool linear =
      false;          // Kimi-Linear: softplus and low-rank gates, SwiGLU, one q_proj, no bank, no latent, BF16 experts
  bool tied = false;  // the head is the embedding
  int64_t layers = 5;
  std::set<int64_t> mla_layers = {3, 4};  // from 0; all others are KDA
  int64_t hidden = 64;
  int64_t vocab = 96;
  int64_t heads = 4;  // of KDA and of MLA
  int64_t kda_dim = 16;
  int64_t q_lora = 40;
  int64_t kv_lora = 32;
  int64_t nope = 16;
  int64_t rope = 8;
  int64_t value = 12;
  int64_t residual_block = 2;
  int64_t dense_inter = 96;
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t expert_inter = 32;
  int64_t shared_experts = 1;
  int64_t latent = 32;
  Storage storage = Storage::mxfp4;
  uint64_t seed = 1;
};

inline nlohmann::ordered_json config_of(const ModelRecipe& r) {
  using Json = nlohmann::ordered_json;
  std::vector<int64_t> kda_layers;
  std::vector<int64_t> mla_layers;
  for (int64_t l = 0; l < r.layers; ++l) (r.mla_layers.contains(l) ? mla_layers : kda_layers).push_back(l + 1);
  Json linear_attention = {{"num_heads", r.heads},
                           {"head_dim", r.kda_dim},
                           {"short_conv_kernel_size", 4},
                           {"kda_layers", kda_layers},
                           {"full_attn_layers", mla_layers}};
  Json text = {{"hidden_size", r.hidden},
               {"num_hidden_layers", r.layers},
               {"vocab_size", r.vocab},
               {"rms_norm_eps", 1e-5},
               {"intermediate_size", r.dense_inter},
               {"first_k_dense_replace", 1},
               {"moe_layer_freq", 1},
               {"num_experts", r.experts},
               {"num_experts_per_token", r.top_k},
               {"num_shared_experts", r.shared_experts},
               {"moe_intermediate_size", r.expert_inter},
               {"moe_renormalize", true},
               {"moe_router_activation_func", "sigmoid"},
               {"num_expert_group", 1},
               {"topk_group", 1},
               {"routed_scaling_factor", 2.0},
               {"num_attention_heads", r.heads},
               {"num_key_value_heads", r.heads},
               {"kv_lora_rank", r.kv_lora},
               {"qk_nope_head_dim", r.nope},
               {"qk_rope_head_dim", r.rope},
               {"v_head_dim", r.value},
               {"mla_use_nope", true},
               {"num_nextn_predict_layers", 0}};
  const Json special = {{"bos_token_id", r.vocab - 3}, {"eos_token_id", r.vocab - 2}, {"pad_token_id", r.vocab - 1}};
  if (r.linear) {
    text.update(special);
    text.update(Json({{"architectures", {"KimiLinearForCausalLM"}},
                      {"model_type", "kimi_linear"},
                      {"hidden_act", "silu"},
                      {"q_lora_rank", nullptr},
                      {"model_max_length", 4096},
                      {"tie_word_embeddings", r.tied},
                      {"linear_attn_config", linear_attention}}));
    return text;
  }
  linear_attention.update(Json({{"gate_lower_bound", -5.0}, {"use_full_rank_gate", true}}));
  text.update(Json({{"hidden_act", "situ"},
                    {"activation_situ_beta", 4.0},
                    {"activation_situ_linear_beta", 25.0},
                    {"routed_expert_hidden_size", r.latent},
                    {"latent_moe_use_norm", true},
                    {"topk_method", "noaux_tc"},
                    {"q_lora_rank", r.q_lora},
                    {"mla_use_output_gate", true},
                    {"attn_res_block_size", r.residual_block},
                    {"max_position_embeddings", 4096},
                    {"linear_attn_config", linear_attention}}));
  Json config = {{"architectures", {"KimiK3ForConditionalGeneration"}},
                 {"model_type", "kimi_k3"},
                 {"tie_word_embeddings", r.tied}};
  config.update(special);
  config["text_config"] = text;
  return config;
}

// The folder goes away with this object.
class RandomCheckpoint {
 public:
  explicit RandomCheckpoint(const ModelRecipe& recipe) : recipe_(recipe) {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-random-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Failure("no temporary folder");
    root_ = name;
    dir_ = root_ / "plain";
    std::filesystem::create_directory(dir_);
    write();
    if (recipe.storage != Storage::fp8) return;
    dir_ = root_ / "fp8";
    checkpoint::convert_to_fp8(root_ / "plain", dir_, checkpoint::parse_fp8_groups("attn,moe,dense"), 1);
  }
  RandomCheckpoint(const RandomCheckpoint&) = delete;
  RandomCheckpoint& operator=(const RandomCheckpoint&) = delete;
  ~RandomCheckpoint() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  const std::filesystem::path& dir() const { return dir_; }

 private:
  struct Tensor {
    checkpoint::TensorHeader header;
    std::vector<std::byte> bytes;
  };
  using Tensors = std::vector<Tensor>;

  void write() const {
    const nlohmann::ordered_json config = config_of(recipe_);
    std::map<std::string, Tensors> shards;
    uint64_t stream = 0;
    const checkpoint::ModelConfig parsed = checkpoint::parse_config(config.dump(), "random");
    for (const checkpoint::CatalogueEntry& entry : checkpoint::catalogue(parsed)) {
      const bool second = entry.layer >= recipe_.layers / 2 || entry.name == "norm" || entry.name == "lm_head";
      add(entry, ++stream, shards[second ? "model-2.safetensors" : "model-1.safetensors"]);
    }
    nlohmann::ordered_json map;
    for (const auto& [file, tensors] : shards) {
      std::vector<checkpoint::TensorHeader> headers;
      for (const Tensor& t : tensors) {
        headers.push_back(t.header);
        map[t.header.name] = file;
      }
      checkpoint::SafetensorsWriter writer(dir_ / file, headers, {{"format", "pt"}});
      for (const Tensor& t : tensors) writer.write(t.bytes);
      writer.finish();
    }
    std::ofstream(dir_ / checkpoint::kIndexFile)
        << nlohmann::ordered_json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}).dump();
    std::ofstream(dir_ / "config.json") << config.dump(2);
  }

  void add(const checkpoint::CatalogueEntry& entry, uint64_t stream, Tensors& to) const {
    const std::string root = recipe_.linear ? "" : "language_model.";
    const std::string name = root + (entry.name == "lm_head" ? "" : "model.") + entry.name;
    if (entry.group == checkpoint::Group::experts && !recipe_.linear && recipe_.storage != Storage::bf16) {
      add_mxfp4(entry, name, stream, to);
      return;
    }
    const bool bare = name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("e_score_correction_bias");
    const bool wide = bare || name.ends_with("conv1d") || name.ends_with("o_norm");
    std::vector<int64_t> shape = entry.shape;
    if (name.ends_with("A_log")) shape[0] += entry.padding;
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<std::byte> bytes(static_cast<size_t>(count) * (wide ? 4 : 2));
    for (int64_t i = 0; i < count; ++i) {
      const float value = value_of(entry, 2 * uniform(stream, i) - 1);
      const uint16_t code = float_to_bf16(value);
      if (wide) {
        std::memcpy(bytes.data() + 4 * i, &value, 4);
      } else {
        std::memcpy(bytes.data() + 2 * i, &code, 2);
      }
    }
    push(to, name + (bare ? "" : ".weight"), wide ? "F32" : "BF16", shape, std::move(bytes));
  }

  // Codes are any; one exponent for the whole matrix would not show exchanged scales, so it varies.
  void add_mxfp4(const checkpoint::CatalogueEntry& entry, const std::string& name, uint64_t stream, Tensors& to) const {
    const int64_t rows = entry.shape[0];
    const int64_t cols = entry.shape[1];
    std::vector<std::byte> codes(static_cast<size_t>(rows * cols / 2));
    std::vector<std::byte> scales(static_cast<size_t>(rows * cols / 32));
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::byte>(uniform(stream, static_cast<int64_t>(i)) * 256);
    }
    const double typical = std::log2(1 / (3 * std::sqrt(static_cast<double>(cols))));
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] =
          static_cast<std::byte>(127 + std::lround(typical + 2 * uniform(~stream, static_cast<int64_t>(i)) - 1));
    }
    push(to, name + ".weight_packed", "U8", {rows, cols / 2}, std::move(codes));
    push(to, name + ".weight_scale", "U8", {rows, cols / 32}, std::move(scales));
  }

  // `u` in [-1, 1). Matrices keep the size of what they multiply; norms are about 1.
  float value_of(const checkpoint::CatalogueEntry& entry, double u) const {
    const std::string_view name = entry.name;
    if (name.ends_with("A_log")) return static_cast<float>(u);
    if (name.ends_with("dt_bias")) return static_cast<float>(u - 1);
    if (name.ends_with("e_score_correction_bias")) return static_cast<float>(0.05 * u);
    if (entry.shape.size() == 1) return static_cast<float>(1 + 0.3 * u);
    if (name == "embed_tokens") return static_cast<float>(1.7 * u);
    if (name.ends_with("conv1d")) return static_cast<float>(0.8 * u);
    // What a layer adds is small beside what it reads, as in a trained model; otherwise rounding grows from layer to
    // layer and choices of experts flip.
    const bool adds = name.ends_with("o_proj") || name.ends_with("down_proj") || name.ends_with("up_proj");
    const bool scores = name.ends_with("_res_proj");
    const double gain = name == "lm_head" ? 2
                        : scores          ? 0.3
                        : adds            ? 0.9 / std::sqrt(static_cast<double>(recipe_.layers))
                                          : 1;
    return static_cast<float>(gain * u * std::sqrt(3.0 / static_cast<double>(entry.shape[1])));
  }

  double uniform(uint64_t stream, int64_t i) const {
    return uniform_at(recipe_.seed, static_cast<uint64_t>(i), stream);
  }
  static void push(Tensors& to, const std::string& name, const char* dtype, std::vector<int64_t> shape,
                   std::vector<std::byte> bytes) {
    to.push_back({{name, dtype, std::move(shape), static_cast<int64_t>(bytes.size())}, std::move(bytes)});
  }

  ModelRecipe recipe_;
  std::filesystem::path root_;
  std::filesystem::path dir_;
};

}  // namespace trireme::testing
