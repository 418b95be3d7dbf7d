// config.json of the K3 family: Kimi K3 (KimiK3ForConditionalGeneration with text_config) and Kimi-Linear
// (KimiLinearForCausalLM).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

enum class LayerKind : uint8_t { kda, mla };

struct KdaConfig {
  int64_t heads = 0;
  int64_t dim = 0;  // of a head's keys and of its values
  int64_t conv_taps = 4;
  std::optional<float> lower_bound;  // of the log decay, < 0; absent: the softplus gate
  bool full_rank_gate = false;       // true: g_proj; false: g_b_proj after g_a_proj
  int64_t width() const { return heads * dim; }
};

struct MlaConfig {
  int64_t heads = 0;
  std::optional<int64_t> q_lora;  // width of the query latent; absent: one q_proj
  int64_t kv_lora = 0;
  int64_t nope = 0;   // query/key dims of a head that go through the latent
  int64_t rope = 0;   // further query/key dims, one key for all heads; named so in configs but never rotated
  int64_t value = 0;  // value dims of a head
  bool output_gate = false;
  int64_t cache_width() const { return kv_lora + rope; }
};

struct MoeConfig {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t inter = 0;              // width of a routed expert
  int64_t shared_inter = 0;       // width of the fused shared expert; 0: none
  std::optional<int64_t> latent;  // width in which routed experts work; absent: the hidden width
  bool latent_norm = false;       // routed_expert_norm on the sum of experts
  bool renormalize = true;        // chosen weights are divided by their sum
  float scaling = 1.0F;           // then multiplied by this
};

struct ModelConfig {
  std::string architecture;  // "KimiK3ForConditionalGeneration" or "KimiLinearForCausalLM"
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  float eps = 1e-5F;
  float latent_eps = 1e-6F;               // of q_a_layernorm and kv_a_layernorm; the key mla_latent_norm_eps overrides
  std::vector<LayerKind> kinds;           // one a layer
  std::optional<int64_t> residual_block;  // attn_res_block_size; absent: a plain residual stream
  int64_t dense_inter = 0;                // 0: no dense layer
  int64_t first_dense = 0;                // layers [0, first_dense) are dense
  int64_t moe_layer_freq = 1;
  bool situ = false;  // SiTU; otherwise SwiGLU
  float situ_beta = 4.0F;
  float situ_linear_beta = 25.0F;
  bool tied_embeddings = false;
  KdaConfig kda;           // zeros if no layer is KDA
  MlaConfig mla;           // zeros if no layer is MLA
  MoeConfig moe;           // zeros if no layer is MoE
  int64_t bos_token = -1;  // -1: the config names none
  int64_t pad_token = -1;  // the same
  std::vector<int64_t>
      eos_tokens;  // of config.json and generation_config.json, in that order, each once; any of them stops
  // Keys that change what is computed, that config.json leaves out, and what stands for them, in words.
  std::map<std::string, std::string> defaults;

  bool is_moe(int64_t layer) const;
  int64_t bank_rows() const;  // rows of the residual bank after the last layer; 0 without a bank
};

// Reads dir/config.json (and dir/generation_config.json if it is there). Throws BadInput that names the file, the key,
// what it holds and what would be right. What the engine cannot compute (rotary positions, grouped routing, a softmax
// router, MTP layers, grouped-query MLA, ModelOpt formats) is refused here.
ModelConfig read_config(const std::filesystem::path& dir);

// The same from the text of config.json alone; `where` is named in errors.
ModelConfig parse_config(const std::string& json, const std::string& where);

}  // namespace trireme::checkpoint
