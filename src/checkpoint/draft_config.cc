#include "checkpoint/draft_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/json_reader.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kMaxSize = 1 << 24;

std::vector<int64_t> read_windows(const JsonObject& root, int64_t layers) {
  if (!root.has("layer_types")) return std::vector<int64_t>(static_cast<size_t>(layers), kFullAttentionDraftWindow);
  std::vector<int64_t> windows;
  for (const std::string& type : root.texts("layer_types")) {
    if (type == "sliding_attention") {
      windows.push_back(root.integer("sliding_window", 1, kMaxSize));
    } else if (type == "full_attention") {
      windows.push_back(kFullAttentionDraftWindow);
    } else {
      root.fail("layer_types", "entries must be sliding_attention or full_attention");
    }
  }
  if (static_cast<int64_t>(windows.size()) != layers) root.fail("layer_types", "it must have one entry a layer");
  return windows;
}

void read_rope(const JsonObject& root, DraftConfig& config) {
  config.rope_theta = root.number_or("rope_theta", 10000.0);
  if (root.has("rope_parameters")) {
    const JsonObject rope = root.object("rope_parameters");
    if (rope.text_or("rope_type", "default") != "default") rope.fail("rope_type", "only default RoPE is supported");
    config.rope_theta = rope.number_or("rope_theta", config.rope_theta);
  }
  if (root.has("rope_scaling")) root.fail("rope_scaling", "only default RoPE is supported");
  if (config.rope_theta <= 1) root.fail("rope_theta", "it must be above 1");
}

void refuse_unsupported(const JsonObject& root, const JsonObject& block) {
  if (root.text_or("hidden_act", "silu") != "silu") root.fail("hidden_act", "it must be silu");
  if (root.boolean_or("attention_bias", false)) root.fail("attention_bias", "it must be false");
  if (root.boolean_or("is_causal", false)) root.fail("is_causal", "it must be false: rows of a block see each other");
  if (root.text_or("aux_hidden_stream", "attn_res") != "attn_res")
    root.fail("aux_hidden_stream", "it must be attn_res");
  if (root.has("fc_norm")) root.fail("fc_norm", "a norm per tap is not supported");
  for (const char* key : {"projector_type", "conv_kernel_size", "selector_rank", "attention_sink_bias",
                          "attention_value_scale", "output_multiplier", "final_logit_softcapping"}) {
    if (block.has(key)) block.fail(key, "this kind of draft is not supported");
  }
}

}  // namespace

int64_t DraftConfig::max_window() const { return *std::max_element(windows.begin(), windows.end()); }

DraftConfig read_draft_config(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  const nlohmann::json json = parse_json_object(read_text_file(path, 1 << 20), path.string());
  const JsonObject root(json, path.string(), "");
  const std::vector<std::string> architectures = root.texts("architectures");
  DraftConfig config;
  if (architectures == std::vector<std::string>{"DSparkDraftModel"}) {
    config.dspark = true;
  } else if (architectures != std::vector<std::string>{"DFlashDraftModel"}) {
    root.fail("architectures", "it must be [\"DSparkDraftModel\"] or [\"DFlashDraftModel\"]");
  }
  config.hidden = root.integer("hidden_size", 1, kMaxSize);
  config.layers = root.integer("num_hidden_layers", 1, 1024);
  config.inter = root.integer("intermediate_size", 1, kMaxSize);
  config.q_heads = root.integer("num_attention_heads", 1, 65536);
  config.kv_heads = root.integer("num_key_value_heads", 1, 65536);
  if (config.q_heads % config.kv_heads != 0) root.fail("num_key_value_heads", "it must divide num_attention_heads");
  config.dim = root.integer("head_dim", 2, 4096);
  if (config.dim % 2 != 0) root.fail("head_dim", "it must be even");
  config.eps = static_cast<float>(root.number_or("rms_norm_eps", 1e-5));
  config.vocab = root.integer("vocab_size", 1, kMaxSize);
  config.target_depth = root.optional_integer("num_target_layers", 1, 65536);
  (void)root.optional_integer("max_position_embeddings", 1, int64_t{1} << 40);  // RoPE has no table that ends there
  config.block = root.integer("block_size", config.dspark ? 1 : 2, 256);
  config.windows = read_windows(root, config.layers);
  read_rope(root, config);
  const JsonObject block = root.object("dflash_config");
  refuse_unsupported(root, block);
  config.target_layers = block.integers("target_layer_ids", 0, 65535);
  if (config.target_layers.empty() ||
      !std::is_sorted(config.target_layers.begin(), config.target_layers.end(), std::less_equal<>())) {
    block.fail("target_layer_ids", "it must be a rising list of layer numbers");
  }
  config.mask_token = block.integer("mask_token_id", 0, config.vocab - 1);
  if (config.dspark) {
    config.markov_rank = root.integer("markov_rank", 1, 65536);
    if (root.text_or("markov_head_type", "vanilla") != "vanilla") root.fail("markov_head_type", "it must be vanilla");
  }
  return config;
}

}  // namespace trireme::checkpoint
