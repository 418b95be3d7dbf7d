// Any text as config.json: either BadInput, or a configuration whose catalogue has positive sizes that add up without
// overflow.
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "checkpoint/convert.h"
#include "fuzz/seeds.h"

namespace {

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> kSeeds = {
      R"({"architectures":["KimiK3ForConditionalGeneration"],"eos_token_id":[61],"text_config":{"hidden_size":64,"num_hidden_layers":3,"vocab_size":64,"rms_norm_eps":1e-5,"hidden_act":"situ","activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"intermediate_size":96,"first_k_dense_replace":1,"moe_layer_freq":1,"num_experts":6,"num_experts_per_token":2,"num_shared_experts":2,"moe_intermediate_size":32,"routed_expert_hidden_size":32,"latent_moe_use_norm":true,"num_attention_heads":3,"q_lora_rank":40,"kv_lora_rank":136,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":12,"mla_use_output_gate":true,"attn_res_block_size":2,"max_position_embeddings":4096,"linear_attn_config":{"num_heads":3,"head_dim":16,"short_conv_kernel_size":4,"gate_lower_bound":-5.0,"use_full_rank_gate":true,"kda_layers":[1,2],"full_attn_layers":[3]}}})",
      R"({"model_type":"kimi_linear","hidden_size":64,"num_hidden_layers":2,"vocab_size":64,"rms_norm_eps":1e-5,"hidden_act":"silu","intermediate_size":96,"mlp_layer_types":["dense","sparse"],"num_experts":6,"num_experts_per_token":2,"moe_intermediate_size":32,"num_attention_heads":3,"q_lora_rank":null,"kv_lora_rank":40,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":12,"model_max_length":4096,"linear_head_dim":16,"linear_num_heads":3,"linear_conv_kernel_dim":4,"layer_types":["linear_attention","full_attention"],"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})"};
  return kSeeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelConfig config = parse_config(text, "config.json");
    if (static_cast<int64_t>(config.kinds.size()) != config.layers) std::abort();
    add_fp8_note(text, {Fp8Group::attn}, "config.json");
    if (config.moe.experts * config.layers > 10000) return 0;  // right, but slow to list
    int64_t bytes = 0;
    for (const CatalogueEntry& entry : catalogue(config)) {
      if (entry.elements() <= 0 || __builtin_add_overflow(bytes, entry.elements() * 4, &bytes)) std::abort();
    }
  } catch (const BadInput& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
