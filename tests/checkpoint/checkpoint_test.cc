#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/summary.h"
#include "checkpoint/tiny.h"

namespace trireme::checkpoint {
namespace {

using testing::bad_input;
using testing::ordered_json;
using testing::TemporaryFolder;
using testing::tiny_linear_config;
using testing::TinyCheckpoint;

constexpr const char* kLayer = "language_model.model.layers.";

TEST(Checkpoint, HandsOutWhatIsStored) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny;
  tiny.make_fp8("language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight");  // 144 x 64: a ragged block row
  tiny.write(folder.path());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.files_opened(), 2);
  EXPECT_EQ(checkpoint.vision_tensors(), 1);

  const WeightView q = checkpoint.weight("layers.0.self_attn.q_proj");
  EXPECT_EQ(q.format, WeightFormat::bf16);
  EXPECT_EQ(q.rows, 48);
  EXPECT_EQ(q.cols, 64);
  const auto& stored = tiny.tensor("language_model.model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(std::memcmp(q.data.data(), stored.bytes.data(), stored.bytes.size()), 0);

  const WeightView kv = checkpoint.weight("layers.3.self_attn.kv_a_proj_with_mqa");
  EXPECT_EQ(kv.format, WeightFormat::fp8_block);
  EXPECT_EQ(kv.scales.size(), 8U);
  EXPECT_EQ(weight_at(kv, 130, 5), e4m3_to_float(static_cast<uint8_t>(kv.data[130 * 64 + 5])) * 0.02F);

  const WeightView w2 = checkpoint.weight("layers.1.block_sparse_moe.experts.5.w2");
  EXPECT_EQ(w2.format, WeightFormat::mxfp4);
  EXPECT_EQ(w2.rows, 32);
  EXPECT_EQ(w2.cols, 32);

  const WeightView conv = checkpoint.weight("layers.2.self_attn.k_conv1d");
  EXPECT_EQ(conv.rows, 48);
  EXPECT_EQ(conv.cols, 4);
  EXPECT_EQ(checkpoint.floats("layers.0.self_attn.A_log").size(), 3U);  // stored with 128
  EXPECT_EQ(checkpoint.floats("norm").size(), 64U);
  EXPECT_EQ(checkpoint.weight("norm").rows, 1);
  EXPECT_TRUE(checkpoint.has("lm_head"));
  EXPECT_FALSE(checkpoint.has("layers.3.self_attn.q_proj"));
  EXPECT_NE(bad_input([&] { checkpoint.weight("layers.9.norm"); }).find("layers.9.norm"), std::string::npos);
}

TEST(Checkpoint, ReleasedBytesCanStillBeRead) {
  const TemporaryFolder folder;
  TinyCheckpoint().write(folder.path());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<float> before = checkpoint.floats("embed_tokens");
  const WeightView view = checkpoint.weight("embed_tokens");
  checkpoint.release(view);
  std::vector<float> after(before.size());
  widen(view, after);
  EXPECT_EQ(before, after);
}

TEST(Checkpoint, LayersOpenOnlyTheFilesAndBytesTheyNeed) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny;  // embedding and layers 0 to 2 in file 1; layers 3, 4, norms and head in file 2
  tiny.write(folder.path());
  int64_t expected = 0;
  for (const auto& [name, tensor] : tiny.tensors) {
    if (name.find("layers.1.") != std::string::npos) expected += static_cast<int64_t>(tensor.bytes.size());
  }
  const Checkpoint middle = Checkpoint::open(folder.path(), 1, 2);
  EXPECT_EQ(middle.files_opened(), 1);
  EXPECT_EQ(middle.shards().at(0).name, "model-1.safetensors");
  EXPECT_EQ(middle.bytes_mapped(), expected);
  EXPECT_FALSE(middle.has("embed_tokens"));
  EXPECT_FALSE(middle.has("norm"));
  EXPECT_FALSE(middle.has("layers.2.input_layernorm"));

  const Checkpoint last = Checkpoint::open(folder.path(), 3, 5);
  EXPECT_EQ(last.files_opened(), 1);
  EXPECT_TRUE(last.has("lm_head") && last.has("output_attn_res_proj"));
  EXPECT_FALSE(last.has("embed_tokens"));
  EXPECT_TRUE(Checkpoint::open(folder.path(), 0, 1).has("embed_tokens"));

  // The file of the other layers may even be absent or broken.
  std::filesystem::remove(folder.path() / "model-1.safetensors");
  EXPECT_NO_THROW(Checkpoint::open(folder.path(), 3, 5));
  EXPECT_NE(bad_input([&] { Checkpoint::open(folder.path(), 2, 5); }).find("model-1.safetensors"), std::string::npos);
  for (const auto& [begin, end] : {std::pair{-1, 2}, std::pair{2, 2}, std::pair{3, 6}}) {
    EXPECT_NE(bad_input([&, b = begin, e = end] { Checkpoint::open(folder.path(), b, e); }).find("layers 0 to 4"),
              std::string::npos);
  }
}

TEST(Checkpoint, KimiLinearWithOtherRootAndOneFileWithoutIndex) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny(tiny_linear_config());
  for (auto& [name, tensor] : tiny.tensors) tensor.file = "model.safetensors";
  tiny.tensor("model.layers.0.self_attn.A_log").shape = {1, 1, 3, 1};
  for (const char* part : {"gate", "up", "down"}) {  // as transformers saves the dense layer
    tiny.rename(std::string("model.layers.0.mlp.") + part + "_proj.weight",
                std::string("model.layers.0.block_sparse_moe.") + part + "_proj.weight");
  }
  tiny.files[kIndexFile] = "absent";
  tiny.write(folder.path());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(checkpoint.has("layers.4.self_attn.q_proj"));
  EXPECT_TRUE(checkpoint.has("layers.0.self_attn.g_b_proj"));
  EXPECT_FALSE(checkpoint.has("layers.1.block_sparse_moe.routed_expert_down_proj"));
  EXPECT_EQ(checkpoint.weight("layers.1.block_sparse_moe.experts.0.w1").format, WeightFormat::bf16);
  EXPECT_EQ(checkpoint.weight("layers.0.mlp.down_proj").cols, 96);
}

TEST(Checkpoint, OtherSpellingsOfK3) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny;
  tiny.rename("language_model.model.layers.2.self_attention_res_proj.weight",
              "language_model.model.layers.2.self_attention_res.proj_weight");
  tiny.rename("language_model.model.layers.2.self_attention_res_norm.weight",
              "language_model.model.layers.2.self_attention_res.norm_weight");
  const std::string expert = "language_model.model.layers.1.block_sparse_moe.experts.0.w1";
  tiny.tensors.erase(expert + ".weight_packed");
  tiny.tensors.erase(expert + ".weight_scale");
  tiny.add(expert + ".weight", "BF16", {32, 32}, "model-1.safetensors");
  tiny.rename("language_model.model.norm.weight", "model.norm.weight");
  tiny.tensor("language_model.model.layers.0.self_attn.A_log").shape = {3};
  tiny.tensor("language_model.model.layers.0.self_attn.A_log").bytes.resize(12);
  tiny.write(folder.path());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(checkpoint.has("layers.2.self_attention_res_proj"));
  EXPECT_EQ(checkpoint.weight("layers.1.block_sparse_moe.experts.0.w1").format, WeightFormat::bf16);
  EXPECT_EQ(checkpoint.weight("layers.1.block_sparse_moe.experts.0.w2").format, WeightFormat::mxfp4);
}

TEST(Checkpoint, TiedEmbeddingsAreTheHead) {
  const TemporaryFolder folder;
  ordered_json config = testing::tiny_k3_config();
  config["tie_word_embeddings"] = true;
  TinyCheckpoint tiny(config);
  tiny.write(folder.path());
  const Checkpoint last = Checkpoint::open(folder.path(), 4, 5);
  EXPECT_EQ(last.weight("lm_head").rows, 64);
  EXPECT_EQ(last.weight("lm_head").data.data(), last.weight("embed_tokens").data.data());
}

struct Malformed {
  const char* kind;
  std::function<void(TinyCheckpoint&)> bend;
  std::vector<std::string> says;
};

std::vector<Malformed> malformed_folders() {
  const std::string l = kLayer;
  const std::string q = l + "0.self_attn.q_proj.weight";
  const std::string expert = l + "1.block_sparse_moe.experts.2.w3";
  const std::string norm = l + "1.input_layernorm.weight";
  return {
      {"missing tensor", [=](auto& t) { t.tensors.erase(q); }, {"layers.0.self_attn.q_proj", "missing"}},
      {"missing expert",
       [=](auto& t) { t.tensors.erase(expert + ".weight_packed"), t.tensors.erase(expert + ".weight_scale"); },
       {"layers.1.block_sparse_moe.experts.2.w3", "missing"}},
      {"unclaimed tensor",
       [=](auto& t) { t.add(l + "0.self_attn.bias.weight", "BF16", {2}, "model-1.safetensors"); },
       {l + "0.self_attn.bias"}},
      {"tensor of a layer too many",
       [=](auto& t) { t.add(l + "5.input_layernorm.weight", "BF16", {64}, "model-2.safetensors"); },
       {l + "5.input_layernorm"}},
      {"expert too many",
       [=](auto& t) {
         t.add(l + "1.block_sparse_moe.experts.6.w1.weight", "BF16", {32, 32}, "model-1.safetensors");
       },
       {"experts.6.w1"}},
      {"unknown root", [=](auto& t) { t.rename(q, "transformer.h.0.q.weight"); }, {"transformer.h.0.q.weight"}},
      {"two spellings of one",
       [=](auto& t) { t.add("model.norm.weight", "BF16", {64}, "model-2.safetensors"); },
       {"language_model.model.norm.weight and model.norm.weight"}},
      {"ModelOpt scale",
       [=](auto& t) { t.add(expert + ".weight_scale_2", "F32", {1}, "model-1.safetensors"); },
       {"ModelOpt", "w3.weight_scale_2"}},
      {"ModelOpt FP8",
       [=](auto& t) {
         t.add(l + "0.self_attn.q_proj.weight_scale", "F32", {1, 1}, "model-1.safetensors");
       },
       {"layers.0.self_attn.q_proj", "ModelOpt"}},
      {"codes without scales",
       [=](auto& t) { t.tensors.erase(expert + ".weight_scale"); },
       {"experts.2.w3", "without weight_scale"}},
      {"scales without codes",
       [=](auto& t) { t.tensors.erase(expert + ".weight_packed"); },
       {"experts.2.w3", "missing"}},
      {"codes and weight",
       [=](auto& t) {
         t.add(expert + ".weight", "BF16", {32, 32}, "model-1.safetensors");
       },
       {"experts.2.w3", "both"}},
      {"MXFP4 with FP8 scales",
       [=](auto& t) {
         t.add(expert + ".weight_scale_inv", "F32", {1, 1}, "model-1.safetensors");
       },
       {"experts.2.w3", "weight_scale_inv"}},
      {"FP8 without scales",
       [=](auto& t) { t.make_fp8(q), t.tensors.erase(q + "_scale_inv"); },
       {q, "no weight_scale_inv"}},
      {"FP8 scales of wrong shape",
       [=](auto& t) {
         t.make_fp8(q), t.add(q + "_scale_inv", "F32", {2, 1}, "model-1.safetensors");
       },
       {q + "_scale_inv", "[2, 1]", "[1, 1]"}},
      {"FP8 scales in BF16",
       [=](auto& t) {
         t.make_fp8(q), t.add(q + "_scale_inv", "BF16", {1, 1}, "model-1.safetensors");
       },
       {q + "_scale_inv", "BF16", "F32"}},
      {"FP8 scales for BF16",
       [=](auto& t) {
         t.add(q + "_scale_inv", "F32", {1, 1}, "model-1.safetensors");
       },
       {q, "F8_E4M3"}},
      {"FP8 norm",
       [=](auto& t) {
         t.add(norm + "_scale_inv", "F32", {1, 1}, "model-1.safetensors");
       },
       {"layers.1.input_layernorm", "not MXFP4 or block-FP8"}},
      {"wrong shape",
       [=](auto& t) {
         t.add(q, "BF16", {64, 48}, "model-1.safetensors");
       },
       {q, "[64, 48]", "[48, 64]"}},
      {"wrong rank",
       [=](auto& t) {
         t.add(norm, "BF16", {64, 1}, "model-1.safetensors");
       },
       {norm, "[64, 1]", "[64]"}},
      {"A_log too short",
       [=](auto& t) { t.add(l + "0.self_attn.A_log", "F32", {2}, "model-1.safetensors"); },
       {"A_log", "[2]", "at least 3"}},
      {"integers", [=](auto& t) { t.add(norm, "U8", {64}, "model-1.safetensors"); }, {norm, "U8"}},
      {"foreign dtype", [=](auto& t) { t.add(norm, "I8", {64}, "model-1.safetensors"); }, {norm, "I8"}},
      {"MXFP4 codes not U8",
       [=](auto& t) { t.tensor(expert + ".weight_packed").dtype = "F8_E4M3"; },
       {expert + ".weight_packed", "U8"}},
      {"MXFP4 scales of wrong shape",
       [=](auto& t) {
         t.add(expert + ".weight_scale", "U8", {16, 2}, "model-1.safetensors");
       },
       {expert + ".weight_scale", "[16, 2]", "[32, 1]"}},
      {"index names another file",
       [=](auto& t) { t.index_overrides[q] = "model-2.safetensors"; },
       {q, "model-1.safetensors", "model-2.safetensors"}},
      {"index names an absent file",
       [=](auto& t) { t.index_overrides[q] = "model-3.safetensors"; },
       {"model-3.safetensors"}},
      {"index names a path",
       [=](auto& t) { t.index_overrides[q] = "../model-1.safetensors"; },
       {q, "../model-1.safetensors"}},
      {"index names a folder", [=](auto& t) { t.index_overrides[q] = ".."; }, {q, ".."}},
      {"index names no safetensors", [=](auto& t) { t.index_overrides[q] = "config.json"; }, {q, "config.json"}},
      {"index does not know a tensor of the file",
       [=](auto& t) { t.index_overrides["vision_tower.patch_embed.weight"] = ""; },
       {"vision_tower.patch_embed.weight", "model-1.safetensors"}},
      {"index knows a tensor that no file has",
       [=](auto& t) { t.index_overrides[q] = "model-1.safetensors", t.tensors.erase(q); },
       {q, "model-1.safetensors", "not in the file"}},
      {"index is no JSON", [=](auto& t) { t.files[kIndexFile] = "{"; }, {kIndexFile, "JSON"}},
      {"index has no weight_map", [=](auto& t) { t.files[kIndexFile] = "{}"; }, {kIndexFile, "weight_map"}},
      {"weight_map is a list",
       [=](auto& t) { t.files[kIndexFile] = R"({"weight_map":[]})"; },
       {kIndexFile, "weight_map"}},
      {"weight_map is empty", [=](auto& t) { t.files[kIndexFile] = R"({"weight_map":{}})"; }, {kIndexFile, "empty"}},
      {"weight_map holds a number",
       [=](auto& t) { t.files[kIndexFile] = R"({"weight_map":{"x":3}})"; },
       {kIndexFile, "puts x"}},
      {"weight_map has a name twice",
       [=](auto& t) { t.files[kIndexFile] = R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})"; },
       {kIndexFile, "x is there twice"}},
      {"no index and no single file",
       [=](auto& t) { t.files[kIndexFile] = "absent"; },
       {kIndexFile, "model.safetensors"}},
      {"broken file",
       [=](auto& t) { t.files["model-2.safetensors"] = "0123456789"; },
       {"model-2.safetensors", "header length"}},
      {"config.json is absent", [=](auto& t) { t.files["config.json"] = "absent"; }, {"config.json"}},
      {"config.json is broken", [=](auto& t) { t.files["config.json"] = "[]"; }, {"config.json"}},
      {"tied embeddings with a head", [=](auto& t) { t.config["tie_word_embeddings"] = true; }, {"lm_head.weight"}},
      {"MTP layer", [=](auto& t) { t.text()["num_nextn_predict_layers"] = 1; }, {"num_nextn_predict_layers"}},
  };
}

TEST(Checkpoint, EveryMalformedFolderNamesTheThing) {
  for (const Malformed& malformed : malformed_folders()) {
    SCOPED_TRACE(malformed.kind);
    const TemporaryFolder folder;
    TinyCheckpoint tiny;
    malformed.bend(tiny);
    tiny.write(folder.path());
    const std::string message = bad_input([&] { Checkpoint::open(folder.path()); });
    for (const std::string& part : malformed.says) EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Checkpoint, BadCodesAreErrorsWhenTheWeightIsTaken) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny;
  const std::string q = std::string(kLayer) + "0.self_attn.q_proj.weight";
  const std::string k = std::string(kLayer) + "0.self_attn.k_proj.weight";
  tiny.make_fp8(q);
  tiny.make_fp8(k);
  tiny.tensor(q).bytes[77] = '\x7f';
  const float negative = -1;
  std::memcpy(tiny.tensor(k + "_scale_inv").bytes.data(), &negative, 4);
  tiny.tensor(std::string(kLayer) + "1.block_sparse_moe.experts.2.w3.weight_scale").bytes[3] = '\xff';
  tiny.write(folder.path());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const auto& [name, says] : {std::pair{"layers.0.self_attn.q_proj", "element [1, 13]"},
                                   std::pair{"layers.0.self_attn.k_proj", "scale [0, 0] is -1"},
                                   std::pair{"layers.1.block_sparse_moe.experts.2.w3", "scale [3, 0] is 255"}}) {
    const std::string message = bad_input([&, n = name] { checkpoint.weight(n); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_NE(message.find("model-1.safetensors"), std::string::npos) << message;
  }
}

TEST(Checkpoint, NanoHasItsParameters) {
  const Summary summary = summarize(Checkpoint::open(TRIREME_SOURCE_DIR "/models/k3-nano"));
  EXPECT_EQ(summary.parameters.used, 24'950'472);
  EXPECT_EQ(summary.parameters.padding, 9 * 120);  // A_log of 9 layers: 128 stored, 8 heads
  EXPECT_EQ(summary.total.parameters, summary.parameters.used);
  EXPECT_EQ(summary.groups.at(Group::experts).formats.at(WeightFormat::mxfp4), 12 * 32 * 3);
}

// The counts of the released model's description; no file is needed.
TEST(Catalogue, FullSizeModelAddsUp) {
  ordered_json config = testing::tiny_k3_config();
  ordered_json& text = config["text_config"];
  text.update(ordered_json::parse(
      R"({"hidden_size": 7168, "num_hidden_layers": 93, "vocab_size": 163840, "intermediate_size": 33792,
    "num_experts": 896, "num_experts_per_token": 16, "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584,
    "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "attn_res_block_size": 12})"));
  ordered_json& linear = text["linear_attn_config"];
  linear["num_heads"] = 96;
  linear["head_dim"] = 128;
  linear["kda_layers"] = ordered_json::array();
  linear["full_attn_layers"] = ordered_json::array();
  for (int layer = 1; layer <= 93; ++layer) {
    linear[layer % 4 == 0 || layer == 93 ? "full_attn_layers" : "kda_layers"].push_back(layer);
  }
  const ModelConfig full = parse_config(config.dump(), "full");
  const auto entries = catalogue(full);
  const ParameterCount count = count_parameters(full, entries);
  EXPECT_EQ(count.used + count.padding, 2'779'484'478'208);
  EXPECT_EQ(count.padding, 69 * 32);
  EXPECT_EQ(entries.size(), 82'432U * 3 + 2'460U);
  EXPECT_EQ(full.bank_rows(), 8);
  int64_t experts = 0;
  for (const CatalogueEntry& entry : entries) experts += entry.group == Group::experts ? entry.elements() : 0;
  EXPECT_EQ(experts, 2'722'740'830'208);
  EXPECT_EQ(count.active, 56'743'648'000 - count.padding + int64_t{92} * 16 * 33'030'144);
}

TEST(Catalogue, GoldenFoldersOpenWhole) {
  for (const auto& [name, files] : {std::pair{"tiny-a", 2}, std::pair{"tiny-b", 3}}) {
    const std::filesystem::path dir = std::filesystem::path(TRIREME_SOURCE_DIR "/../shared/golden") / name;
    if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is absent";
    const Checkpoint checkpoint = Checkpoint::open(dir);
    EXPECT_EQ(checkpoint.files_opened(), files);
    EXPECT_EQ(checkpoint.vision_tensors(), 9);
    for (const StoredWeight& weight : checkpoint.weights()) EXPECT_NO_THROW(checkpoint.weight(weight.entry.name));
  }
}

// Released bytes and their decoded values.
TEST(Mxfp4, ReleasedBytesDecode) {
  const std::filesystem::path path = TRIREME_SOURCE_DIR "/../shared/fixtures/kimi-k3-in-c/mxfp4.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const auto fixture = nlohmann::json::parse(testing::read_file(path));
  const auto packed = fixture.at("packed").at("data").get<std::vector<uint8_t>>();
  const auto scales = fixture.at("scales").at("data").get<std::vector<uint8_t>>();
  const WeightView view{WeightFormat::mxfp4, fixture.at("rows").get<int64_t>(),
                        fixture.at("logical_width").get<int64_t>(), std::as_bytes(std::span(packed)),
                        std::as_bytes(std::span(scales))};
  EXPECT_FALSE(find_bad_code(view));
  const auto expected = fixture.at("expected").at("data").get<std::vector<float>>();
  std::vector<float> all(static_cast<size_t>(view.rows * view.cols));
  widen(view, all);
  ASSERT_EQ(expected.size(), all.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(all[i], expected[i]) << i;
}

}  // namespace
}  // namespace trireme::checkpoint
