#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "checkpoint/draft_config.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/names.h"
#include "checkpoint/tiny.h"

namespace trireme::checkpoint {
namespace {

using testing::bad_input;
using testing::ordered_json;
using testing::tiny_k3_config;
using testing::tiny_linear_config;

TEST(Config, ReadsK3) {
  const ModelConfig config = parse_config(tiny_k3_config().dump(), "c");
  EXPECT_EQ(config.architecture, "KimiK3ForConditionalGeneration");
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.kinds,
            (std::vector<LayerKind>{LayerKind::kda, LayerKind::kda, LayerKind::kda, LayerKind::mla, LayerKind::mla}));
  EXPECT_EQ(config.kda.width(), 48);
  EXPECT_EQ(config.kda.lower_bound, -5.0F);
  EXPECT_TRUE(config.kda.full_rank_gate);
  EXPECT_EQ(config.mla.q_lora, 40);
  EXPECT_EQ(config.mla.cache_width(), 144);
  EXPECT_TRUE(config.mla.output_gate);
  EXPECT_EQ(config.moe.shared_inter, 64);
  EXPECT_EQ(config.moe.latent, 32);
  EXPECT_EQ(config.moe.scaling, 2.5F);
  EXPECT_EQ(config.bank_rows(), 3);
  EXPECT_FALSE(config.is_moe(0));
  EXPECT_TRUE(config.is_moe(1));
  EXPECT_EQ(config.latent_eps, 1e-6F);
  EXPECT_EQ(config.eos_tokens, (std::vector<int64_t>{61}));
  EXPECT_EQ(config.bos_token, 60);
  EXPECT_EQ(config.pad_token, 63);
}

TEST(Config, ReadsKimiLinear) {
  const ModelConfig config = parse_config(tiny_linear_config().dump(), "c");
  EXPECT_EQ(config.architecture, "KimiLinearForCausalLM");
  EXPECT_EQ(config.kinds.back(), LayerKind::mla);
  EXPECT_FALSE(config.situ);
  EXPECT_FALSE(config.kda.lower_bound);
  EXPECT_FALSE(config.kda.full_rank_gate);
  EXPECT_FALSE(config.mla.q_lora);
  EXPECT_FALSE(config.mla.output_gate);
  EXPECT_FALSE(config.moe.latent);
  EXPECT_FALSE(config.moe.latent_norm);
  EXPECT_FALSE(config.residual_block);
  EXPECT_EQ(config.bank_rows(), 0);
  EXPECT_EQ(config.first_dense, 1);
  EXPECT_EQ(config.max_positions, 4096);
  EXPECT_EQ(config.pad_token, -1);
  EXPECT_EQ(config.eos_tokens, (std::vector<int64_t>{61, 62}));
}

TEST(Config, GenerationConfigAddsStopTokens) {
  const testing::TemporaryFolder folder;
  testing::write_file(folder.path() / "config.json", tiny_k3_config().dump());
  testing::write_file(folder.path() / "generation_config.json", R"({"eos_token_id": [61, 59]})");
  EXPECT_EQ(read_config(folder.path()).eos_tokens, (std::vector<int64_t>{61, 59}));
  testing::write_file(folder.path() / "generation_config.json", R"({"eos_token_id": 64})");
  EXPECT_NE(bad_input([&] { read_config(folder.path()); }).find("generation_config.json: eos_token_id is 64"),
            std::string::npos);
  testing::write_file(folder.path() / "generation_config.json", "{");
  EXPECT_NE(bad_input([&] { read_config(folder.path()); }).find("generation_config.json"), std::string::npos);
}

TEST(Config, AbsentFolderAndFile) {
  const testing::TemporaryFolder folder;
  EXPECT_NE(bad_input([&] { read_config(folder.path() / "nothing"); }).find("nothing"), std::string::npos);
  EXPECT_NE(bad_input([&] { read_config(folder.path()); }).find("config.json"), std::string::npos);
}

struct Malformed {
  const char* says;
  std::function<void(ordered_json& root, ordered_json& text)> bend;
};

// Every case must name the key.
const std::vector<Malformed>& malformed_configs() {
  using J = ordered_json;
  static const std::vector<Malformed> kCases = {
      {"architectures is a list; it names LlamaForCausalLM",
       [](J& root, J&) { root["architectures"] = {"LlamaForCausalLM"}; }},
      {"architectures", [](J& root, J&) { root["architectures"] = 3; }},
      {"architectures is missing", [](J& root, J&) { root.erase("architectures"), root.erase("model_type"); }},
      {"text_config is missing", [](J& root, J&) { root.erase("text_config"); }},
      {"text_config is a list", [](J& root, J&) { root["text_config"] = J::array(); }},
      {"text_config.hidden_size is missing", [](J&, J& text) { text.erase("hidden_size"); }},
      {"text_config.hidden_size is \"64\"; it must be an integer", [](J&, J& text) { text["hidden_size"] = "64"; }},
      {"text_config.hidden_size is 0", [](J&, J& text) { text["hidden_size"] = 0; }},
      {"text_config.hidden_size is 64.5", [](J&, J& text) { text["hidden_size"] = 64.5; }},
      {"text_config.hidden_size is 18446744073709551615", [](J&, J& text) { text["hidden_size"] = UINT64_MAX; }},
      {"text_config.vocab_size is 1000000000000", [](J&, J& text) { text["vocab_size"] = 1000000000000; }},
      {"text_config.num_hidden_layers is -1", [](J&, J& text) { text["num_hidden_layers"] = -1; }},
      {"text_config.max_position_embeddings", [](J&, J& text) { text["max_position_embeddings"] = 0; }},
      {"text_config.rms_norm_eps is -0.1", [](J&, J& text) { text["rms_norm_eps"] = -0.1; }},
      {"text_config.rms_norm_eps is true", [](J&, J& text) { text["rms_norm_eps"] = true; }},
      {"text_config.hidden_act is \"gelu\"", [](J&, J& text) { text["hidden_act"] = "gelu"; }},
      {"text_config.activation_situ_beta is missing", [](J&, J& text) { text.erase("activation_situ_beta"); }},
      {"text_config.activation_situ_linear_beta is 0", [](J&, J& text) { text["activation_situ_linear_beta"] = 0; }},
      {"text_config.linear_attn_config", [](J&, J& text) { text.erase("linear_attn_config"); }},
      {"linear_attn_config.full_attn_layers holds 999",
       [](J&, J& text) {
         text["linear_attn_config"]["full_attn_layers"] = {4, 999};
       }},
      {"linear_attn_config.kda_layers holds 0",
       [](J&, J& text) {
         text["linear_attn_config"]["kda_layers"] = {0, 1, 2};
       }},
      {"it names layer 4",
       [](J&, J& text) {
         text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4};
       }},
      {"layer 3 (from 1) of 5 is neither",
       [](J&, J& text) {
         text["linear_attn_config"]["kda_layers"] = {1, 2};
       }},
      {"linear_attn_config.num_heads is missing", [](J&, J& text) { text["linear_attn_config"].erase("num_heads"); }},
      {"linear_attn_config.head_dim is -16", [](J&, J& text) { text["linear_attn_config"]["head_dim"] = -16; }},
      {"linear_attn_config.head_dim", [](J&, J& text) { text["linear_attn_config"]["head_dim"] = 1000000; }},
      {"linear_attn_config.short_conv_kernel_size is 0",
       [](J&, J& text) { text["linear_attn_config"]["short_conv_kernel_size"] = 0; }},
      {"linear_attn_config.gate_lower_bound is 5",
       [](J&, J& text) { text["linear_attn_config"]["gate_lower_bound"] = 5; }},
      {"linear_attn_config.use_full_rank_gate is 1",
       [](J&, J& text) { text["linear_attn_config"]["use_full_rank_gate"] = 1; }},
      {"text_config.mla_use_nope is false", [](J&, J& text) { text["mla_use_nope"] = false; }},
      {"text_config.rope_scaling is an object",
       [](J&, J& text) {
         text["rope_scaling"] = {{"type", "yarn"}};
       }},
      {"text_config.num_key_value_heads is 1", [](J&, J& text) { text["num_key_value_heads"] = 1; }},
      {"text_config.q_lora_rank is 0", [](J&, J& text) { text["q_lora_rank"] = 0; }},
      {"text_config.kv_lora_rank is null", [](J&, J& text) { text["kv_lora_rank"] = nullptr; }},
      {"text_config.v_head_dim is 0", [](J&, J& text) { text["v_head_dim"] = 0; }},
      {"text_config.qk_nope_head_dim is 1000000", [](J&, J& text) { text["qk_nope_head_dim"] = 1000000; }},
      {"text_config.attn_res_block_size is 0", [](J&, J& text) { text["attn_res_block_size"] = 0; }},
      {"text_config.first_k_dense_replace is 6", [](J&, J& text) { text["first_k_dense_replace"] = 6; }},
      {"text_config.moe_layer_freq is 0", [](J&, J& text) { text["moe_layer_freq"] = 0; }},
      {"text_config.intermediate_size is missing", [](J&, J& text) { text.erase("intermediate_size"); }},
      {"text_config.num_experts is 0", [](J&, J& text) { text["num_experts"] = 0; }},
      {"text_config.num_experts is 1000000; over 4 layers", [](J&, J& text) { text["num_experts"] = 1000000; }},
      {"text_config.num_experts_per_token is 7; it must be an integer from 1 to 6",
       [](J&, J& text) { text["num_experts_per_token"] = 7; }},
      {"text_config.num_shared_experts is 1000000", [](J&, J& text) { text["num_shared_experts"] = 1000000; }},
      {"text_config.latent_moe_use_norm is true", [](J&, J& text) { text.erase("routed_expert_hidden_size"); }},
      {"text_config.num_expert_group is 8", [](J&, J& text) { text["num_expert_group"] = 8; }},
      {"text_config.topk_group is 2", [](J&, J& text) { text["topk_group"] = 2; }},
      {"text_config.moe_router_activation_func is \"softmax\"",
       [](J&, J& text) { text["moe_router_activation_func"] = "softmax"; }},
      {"text_config.topk_method is \"greedy\"", [](J&, J& text) { text["topk_method"] = "greedy"; }},
      {"text_config.num_nextn_predict_layers is 1", [](J&, J& text) { text["num_nextn_predict_layers"] = 1; }},
      {"text_config.attention_bias is true", [](J&, J& text) { text["attention_bias"] = true; }},
      {"eos_token_id is 64", [](J& root, J&) { root["eos_token_id"] = 64; }},
      {"eos_token_id holds \"a\"",
       [](J& root, J&) {
         root["eos_token_id"] = {1, "a"};
       }},
      {"bos_token_id is -2", [](J& root, J&) { root["bos_token_id"] = -2; }},
      {"ModelOpt",
       [](J& root, J&) {
         root["quantization_config"] = {{"quant_method", "modelopt"}};
       }},
      {"text_config.quantization_config.weight_block_size",
       [](J&, J& text) {
         text["quantization_config"] = {{"weight_block_size", {64, 64}}};
       }},
      {"quantization_config.quant_method is \"awq\"; only",
       [](J& root, J&) {
         root["quantization_config"] = {{"quant_method", "awq"}};
       }},
      {"quantization_config.format is \"nvfp4-pack-quantized\"; only",
       [](J& root, J&) {
         root["quantization_config"] = {{"format", "nvfp4-pack-quantized"}};
       }},
      {"quantization_config.fmt is \"e5m2\"; only",
       [](J& root, J&) {
         root["quantization_config"] = {{"fmt", "e5m2"}};
       }},
      {"quantization_config.block_fp8.fmt is \"e5m2\"; only",
       [](J&, J& text) {
         text["quantization_config"]["block_fp8"] = {{"fmt", "e5m2"}};
       }},
      {"quantization_config.block_fp8.weight_block_size is a list; it must be [128, 128]",
       [](J&, J& text) {
         text["quantization_config"]["block_fp8"] = {{"weight_block_size", {1, 128}}};
       }},
      {"quantization_config.config_groups.g.format is \"pack-quantized\"; only",
       [](J&, J& text) { text["quantization_config"]["config_groups"]["g"]["format"] = "pack-quantized"; }},
      {"quantization_config.config_groups.g.weights.symmetric is false; only true",
       [](J&, J& text) { text["quantization_config"]["config_groups"]["g"]["weights"]["symmetric"] = false; }},
      {"quantization_config.config_groups.g.weights.type is \"int\"; only",
       [](J&, J& text) { text["quantization_config"]["config_groups"]["g"]["weights"]["type"] = "int"; }},
      {"quantization_config.config_groups.g.weights.num_bits is 8; only 4",
       [](J&, J& text) { text["quantization_config"]["config_groups"]["g"]["weights"]["num_bits"] = 8; }},
      {"quantization_config.config_groups.g.weights.group_size is 16; only 32",
       [](J&, J& text) { text["quantization_config"]["config_groups"]["g"]["weights"]["group_size"] = 16; }},
      {"text_config.tie_word_embeddings is false; on the top level it is true",
       [](J& root, J& text) { root["tie_word_embeddings"] = true, text["tie_word_embeddings"] = false; }},
      {"text_config.tie_word_embeddings is true; on the top level it is false",
       [](J& root, J& text) { root["tie_word_embeddings"] = false, text["tie_word_embeddings"] = true; }},
  };
  return kCases;
}

TEST(Config, EveryMalformedConfigNamesTheKey) {
  for (const Malformed& malformed : malformed_configs()) {
    SCOPED_TRACE(malformed.says);
    ordered_json root = tiny_k3_config();
    ordered_json scratch;
    malformed.bend(root,
                   root.contains("text_config") && root["text_config"].is_object() ? root["text_config"] : scratch);
    const std::string message = bad_input([&] { parse_config(root.dump(), "dir/config.json"); });
    EXPECT_NE(message.find(malformed.says), std::string::npos) << message;
    EXPECT_EQ(message.rfind("dir/config.json", 0), 0U) << message;
  }
}

TEST(Config, MalformedKimiLinear) {
  const auto message_of = [](const std::function<void(ordered_json&)>& bend) {
    ordered_json root = tiny_linear_config();
    bend(root);
    return bad_input([&] { parse_config(root.dump(), "c"); });
  };
  EXPECT_NE(message_of([](auto& c) { c["layer_types"].erase(0); }).find("layer_types is a list; it has 4 items"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& c) { c["layer_types"][1] = "sliding"; }).find("\"sliding\""), std::string::npos);
  EXPECT_NE(message_of([](auto& c) { c["mlp_layer_types"][2] = "dense"; }).find("mlp_layer_types"), std::string::npos);
  EXPECT_NE(message_of([](auto& c) { c.erase("linear_num_heads"); }).find("linear_num_heads is missing"),
            std::string::npos);
}

TEST(Config, TextThatIsNoConfig) {
  for (const char* text : {"", "[]", "{", "nul", "{\"a\":1,\"a\":2}", "\xff", "3"}) {
    EXPECT_EQ(bad_input([&] { parse_config(text, "c.json"); }).rfind("c.json", 0), 0U) << text;
  }
}

// The JSON parser would stop at the NUL byte and take what is before it.
TEST(Config, NothingMayHideBehindANulByte) {
  const std::string text = std::string("{\"a\": 1}") + '\0' + "{";
  EXPECT_NE(
      testing::bad_input([&] { (void)parse_json_object(text, "x.json"); }).find("x.json: it is not valid JSON: a NUL"),
      std::string::npos);
}

TEST(Config, SaysWhatStandsForKeysThatAreLeftOut) {
  ordered_json root = tiny_k3_config();
  EXPECT_TRUE(parse_config(root.dump(), "c").defaults.empty());
  root["text_config"].erase("routed_scaling_factor");
  root["text_config"]["linear_attn_config"].erase("gate_lower_bound");
  const ModelConfig config = parse_config(root.dump(), "c");
  EXPECT_EQ(config.moe.scaling, 1.0F);
  EXPECT_FALSE(config.kda.lower_bound);
  EXPECT_EQ(config.defaults, (std::map<std::string, std::string>{{"gate_lower_bound", "none, the softplus gate"},
                                                                 {"routed_scaling_factor", "1"}}));
}

TEST(Config, TheParserIsNotNamed) {
  const std::string message = testing::bad_input([] { (void)parse_json_object("{", "x.json"); });
  EXPECT_TRUE(message.starts_with("x.json: it is not valid JSON: parse error at line 1")) << message;
}

TEST(DraftConfig, RefusesWhatItWouldNotHeed) {
  const testing::TemporaryFolder folder;
  ordered_json config =
      ordered_json::parse(testing::read_file(std::string(TRIREME_SOURCE_DIR) + "/models/k3-nano-dspark/config.json"));
  const auto read = [&] {
    testing::write_file(folder.path() / "config.json", config.dump());
    return read_draft_config(folder.path());
  };
  EXPECT_EQ(read().target_depth, 13);
  config["max_position_embeddings"] = 0;
  EXPECT_NE(testing::bad_input(read).find("max_position_embeddings is 0"), std::string::npos);
  config.erase("max_position_embeddings");
  config["num_target_layers"] = 0;
  EXPECT_NE(testing::bad_input(read).find("num_target_layers is 0"), std::string::npos);
  config.erase("num_target_layers");
  EXPECT_FALSE(read().target_depth);
}

// What is there but unusable is not the same as absent.
TEST(Config, ABrokenGenerationConfigIsRefused) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy_file(std::string(TRIREME_SOURCE_DIR) + "/models/k3-nano/config.json",
                             folder.path() / "config.json");
  EXPECT_NO_THROW((void)read_config(folder.path()));
  std::filesystem::create_symlink("nowhere", folder.path() / "generation_config.json");
  EXPECT_NE(testing::bad_input([&] { (void)read_config(folder.path()); }).find("generation_config.json"),
            std::string::npos);
}

TEST(Names, SpellingsOfOneTensor) {
  const ModelConfig config = parse_config(tiny_k3_config().dump(), "c");
  const auto entry = [&](const char* name) {
    const StoredName read = read_stored_name(name, config);
    return read.kind == NameKind::text ? read.entry + "|" + std::string(part_suffix(read.part)) : "-";
  };
  EXPECT_EQ(entry("language_model.model.layers.1.self_attn.q_proj.weight"), "layers.1.self_attn.q_proj|.weight");
  EXPECT_EQ(entry("model.layers.1.self_attn.q_proj.weight_scale_inv"), "layers.1.self_attn.q_proj|.weight_scale_inv");
  EXPECT_EQ(entry("model.layers.1.self_attn.A_log"), "layers.1.self_attn.A_log|.weight");
  EXPECT_EQ(entry("model.layers.1.self_attn.A_log.weight"), "-");
  EXPECT_EQ(entry("model.layers.1.self_attn.q_proj"), "-");
  EXPECT_EQ(entry("model.layers.1.mlp_res.proj_weight"), "layers.1.mlp_res_proj|.weight");
  EXPECT_EQ(entry("model.output_attn_res.norm_weight"), "output_attn_res_norm|.weight");
  EXPECT_EQ(entry("model.layers.0.block_sparse_moe.gate_proj.weight"), "layers.0.mlp.gate_proj|.weight");
  EXPECT_EQ(entry("model.layers.1.mlp.experts.3.w1.weight_packed"),
            "layers.1.block_sparse_moe.experts.3.w1|.weight_packed");
  EXPECT_EQ(entry("language_model.lm_head.weight"), "lm_head|.weight");
  EXPECT_EQ(entry("lm_head.weight"), "lm_head|.weight");
  EXPECT_EQ(entry("model.lm_head.weight"), "-");
  EXPECT_EQ(entry("layers.1.self_attn.q_proj.weight"), "-");
  EXPECT_EQ(entry(""), "-");
  EXPECT_EQ(entry("model."), "-");
  EXPECT_EQ(read_stored_name("vision_tower.x", config).kind, NameKind::vision);
  EXPECT_EQ(read_stored_name("mm_projector.x", config).kind, NameKind::vision);
  EXPECT_EQ(read_stored_name("model.layers.1.mlp.experts.0.w1.weight_scale_2", config).kind, NameKind::modelopt);
}

}  // namespace
}  // namespace trireme::checkpoint
