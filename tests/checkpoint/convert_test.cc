#include "checkpoint/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tiny.h"

namespace trireme::checkpoint {
namespace {

using testing::bad_input;
using testing::ordered_json;
using testing::read_file;
using testing::TemporaryFolder;
using testing::TinyCheckpoint;

constexpr const char* kAll = "attn,moe,dense";

// All tensors of a folder by stored name, vision included.
std::map<std::string, TensorInfo> stored_tensors(const std::filesystem::path& dir,
                                                 std::map<std::string, std::string>* bytes = nullptr) {
  std::map<std::string, TensorInfo> tensors;
  std::set<std::string> files;
  for (const auto& [tensor, file] : read_shard_index(dir).files) files.insert(file);
  for (const std::string& name : files) {
    const SafetensorsFile file(dir / name);
    for (const auto& [tensor, info] : file.tensors()) {
      tensors.emplace(tensor, info);
      const auto span = file.bytes(info);
      if (bytes != nullptr) (*bytes)[tensor].assign(reinterpret_cast<const char*>(span.data()), span.size());
    }
  }
  return tensors;
}

// The stored names that become FP8 in a K3 model, written out from the specification.
std::set<std::string> expected_names(const ModelConfig& config) {
  std::set<std::string> names;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string l = "language_model.model.layers." + std::to_string(layer) + ".";
    const bool kda = config.kinds[static_cast<size_t>(layer)] == LayerKind::kda;
    for (const char* part :
         kda ? std::vector{"q_proj", "k_proj", "v_proj", "g_proj", "o_proj"}
             : std::vector{"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "g_proj", "o_proj"}) {
      names.insert(l + "self_attn." + part + ".weight");
    }
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      names.insert(l + (layer == 0 ? "mlp." : "block_sparse_moe.shared_experts.") + part + ".weight");
    }
    if (layer == 0) continue;
    names.insert(l + "block_sparse_moe.routed_expert_down_proj.weight");
    names.insert(l + "block_sparse_moe.routed_expert_up_proj.weight");
  }
  return names;
}

// What every conversion of everything must hold.
void check_conversion(const std::filesystem::path& from, const std::filesystem::path& to, const ConvertReport& report) {
  const Checkpoint before = Checkpoint::open(from);
  const Checkpoint after = Checkpoint::open(to);
  std::map<std::string, std::string> old_bytes;
  std::map<std::string, std::string> new_bytes;
  const auto old_tensors = stored_tensors(from, &old_bytes);
  const auto new_tensors = stored_tensors(to, &new_bytes);
  const std::set<std::string> expected = expected_names(before.config());
  ASSERT_EQ(new_tensors.size(), old_tensors.size() + expected.size());
  int64_t bytes = 0;
  for (const auto& [name, info] : old_tensors) {
    bytes += new_tensors.at(name).bytes();
    EXPECT_EQ(new_tensors.at(name).shape, info.shape);
    if (expected.contains(name)) {
      EXPECT_EQ(new_tensors.at(name).dtype, DType::f8_e4m3) << name;
      ASSERT_TRUE(new_tensors.contains(name + "_scale_inv")) << name;
      bytes += new_tensors.at(name + "_scale_inv").bytes();
    } else {
      EXPECT_EQ(new_bytes.at(name), old_bytes.at(name)) << name;
    }
  }
  EXPECT_EQ(report.bytes_after, bytes);
  int64_t tensors = 0;
  int64_t saved = 0;
  for (const auto& [group, counts] : report.groups) {
    tensors += counts.tensors;
    saved += counts.bytes_before - counts.bytes_after;
    EXPECT_GT(counts.error.relative(), 0.005);
    EXPECT_LT(counts.error.relative(), 0.04);
  }
  EXPECT_EQ(tensors, static_cast<int64_t>(expected.size()));
  EXPECT_EQ(report.bytes_before - report.bytes_after, saved);
  // Values: each within half a step of E4M3 of its original.
  for (const StoredWeight& weight : after.weights()) {
    if (weight.format != WeightFormat::fp8_block) continue;
    const std::vector<float> old_values = before.floats(weight.entry.name);
    const std::vector<float> new_values = after.floats(weight.entry.name);
    const WeightView view = after.weight(weight.entry.name);
    for (size_t i = 0; i < old_values.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / view.cols;
      const auto col = static_cast<int64_t>(i) % view.cols;
      float scale = 0;
      std::memcpy(&scale, view.scales.data() + (row / 128 * ((view.cols + 127) / 128) + col / 128) * 4, 4);
      const float step = std::max(std::fabs(old_values[i]) / 16, scale * 0x1p-10F);
      ASSERT_LE(std::fabs(new_values[i] - old_values[i]), step * 1.0001F) << weight.entry.name << " " << i;
    }
  }
}

TEST(Convert, TinyModelHasExactlyTheNames) {
  const TemporaryFolder source;
  const TemporaryFolder target;
  TinyCheckpoint().write(source.path());
  testing::write_file(source.path() / "tiktoken.model", "words");
  testing::write_file(source.path() / "generation_config.json", "{}");
  testing::write_file(source.path() / "unrelated.safetensors", "not copied");
  const auto to = target.path() / "new" / "folder";
  const ConvertReport report = convert_to_fp8(source.path(), to, parse_fp8_groups(kAll), 2);
  check_conversion(source.path(), to, report);
  EXPECT_EQ(report.files, 2);
  EXPECT_EQ(read_file(to / "tiktoken.model"), "words");
  EXPECT_EQ(read_file(to / "generation_config.json"), "{}");
  EXPECT_FALSE(std::filesystem::exists(to / "unrelated.safetensors"));
  const auto config = ordered_json::parse(read_file(to / "config.json"));
  EXPECT_EQ(config["text_config"]["quantization_config"]["block_fp8"]["groups"].dump(), R"(["attn","moe","dense"])");
}

TEST(Convert, GoldenModel) {
  const std::filesystem::path from = TRIREME_SOURCE_DIR "/../shared/golden/tiny-a";
  if (!std::filesystem::exists(from)) GTEST_SKIP() << from << " is absent";
  const TemporaryFolder target;
  check_conversion(from, target.path(), convert_to_fp8(from, target.path(), parse_fp8_groups(kAll), 2));
  const auto config = ordered_json::parse(read_file(target.path() / "config.json"));
  const auto& quantization = config["text_config"]["quantization_config"];
  EXPECT_EQ(quantization["quant_method"], "compressed-tensors");  // the experts' note stays
  EXPECT_EQ(quantization["block_fp8"]["weight_block_size"].dump(), "[128,128]");
}

TEST(Convert, BytesDoNotDependOnThreads) {
  const TemporaryFolder source;
  const TemporaryFolder one;
  const TemporaryFolder three;
  TinyCheckpoint().write(source.path());
  convert_to_fp8(source.path(), one.path(), parse_fp8_groups(kAll), 1);
  convert_to_fp8(source.path(), three.path(), parse_fp8_groups(kAll), 3);
  for (const char* name : {"model-1.safetensors", "model-2.safetensors", kIndexFile, "config.json"}) {
    EXPECT_EQ(read_file(one.path() / name), read_file(three.path() / name)) << name;
  }
}

TEST(Convert, OneGroupLeavesTheOthers) {
  const TemporaryFolder source;
  const TemporaryFolder target;
  TinyCheckpoint().write(source.path());
  const ConvertReport report = convert_to_fp8(source.path(), target.path(), {Fp8Group::dense}, 1);
  EXPECT_EQ(report.groups.size(), 1U);
  EXPECT_EQ(report.groups.at(Fp8Group::dense).tensors, 3);
  EXPECT_EQ(report.groups.at(Fp8Group::dense).parameters, 3 * 64 * 96);
  const Checkpoint after = Checkpoint::open(target.path());
  EXPECT_EQ(after.weight("layers.0.mlp.up_proj").format, WeightFormat::fp8_block);
  EXPECT_EQ(after.weight("layers.0.self_attn.q_proj").format, WeightFormat::bf16);
  // The rest can follow in a second step.
  const TemporaryFolder rest;
  EXPECT_EQ(convert_to_fp8(target.path(), rest.path(), {Fp8Group::attn, Fp8Group::moe}, 1).groups.size(), 2U);
}

TEST(Convert, KimiLinear) {
  const TemporaryFolder source;
  const TemporaryFolder target;
  TinyCheckpoint(testing::tiny_linear_config()).write(source.path());
  convert_to_fp8(source.path(), target.path(), parse_fp8_groups(kAll), 1);
  const Checkpoint after = Checkpoint::open(target.path());
  for (const char* name :
       {"layers.4.self_attn.q_proj", "layers.1.block_sparse_moe.shared_experts.up_proj", "layers.0.mlp.gate_proj"}) {
    EXPECT_EQ(after.weight(name).format, WeightFormat::fp8_block) << name;
  }
  for (const char* name :
       {"layers.0.self_attn.g_b_proj", "layers.0.self_attn.f_a_proj", "layers.0.self_attn.b_proj", "lm_head",
        "embed_tokens", "layers.1.block_sparse_moe.gate", "layers.1.block_sparse_moe.experts.0.w1"}) {
    EXPECT_EQ(after.weight(name).format, WeightFormat::bf16) << name;
  }
  EXPECT_EQ(ordered_json::parse(read_file(target.path() / "config.json"))["quantization_config"]["quant_method"],
            "fp8");
}

TEST(Convert, RefusesWhatItCannotDo) {
  const TemporaryFolder source;
  const TemporaryFolder target;
  TinyCheckpoint tiny;
  tiny.write(source.path());
  const auto convert = [&](const std::filesystem::path& from, const std::filesystem::path& to) {
    convert_to_fp8(from, to, parse_fp8_groups(kAll), 1);
  };
  EXPECT_NE(bad_input([&] { convert(source.path(), source.path()); }).find("both the source and the target"),
            std::string::npos);
  EXPECT_NE(bad_input([&] {
              convert(source.path(), source.path() / ".." / source.path().filename());
            }).find("both the source"),
            std::string::npos);
  testing::write_file(target.path() / "something", "");
  EXPECT_NE(bad_input([&] { convert(source.path(), target.path()); }).find("not empty"), std::string::npos);
  EXPECT_NE(bad_input([&] { convert(source.path(), target.path() / "something"); }).find("not a folder"),
            std::string::npos);
  EXPECT_NE(bad_input([&] { convert(source.path() / "absent", target.path() / "x"); }).find("absent"),
            std::string::npos);
  convert(source.path(), target.path() / "fp8");
  EXPECT_NE(bad_input([&] { convert(target.path() / "fp8", target.path() / "again"); }).find("already fp8_block"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(target.path() / "again"));
}

TEST(Convert, AnInfinityIsNamedAndNothingStays) {
  const TemporaryFolder source;
  const TemporaryFolder target;
  TinyCheckpoint tiny;
  std::string& bytes = tiny.tensor("language_model.model.layers.4.self_attn.o_proj.weight").bytes;
  bytes[10] = '\x80';
  bytes[11] = '\x7f';
  tiny.write(source.path());
  const std::string message =
      bad_input([&] { convert_to_fp8(source.path(), target.path() / "new", parse_fp8_groups(kAll), 2); });
  EXPECT_NE(message.find("layers.4.self_attn.o_proj.weight"), std::string::npos) << message;
  EXPECT_FALSE(std::filesystem::exists(target.path() / "new"));
}

TEST(Convert, GroupNames) {
  EXPECT_EQ(parse_fp8_groups("dense,attn"), (std::set<Fp8Group>{Fp8Group::attn, Fp8Group::dense}));
  EXPECT_NE(bad_input([] { parse_fp8_groups("attn,experts"); }).find("\"experts\" is not a group"), std::string::npos);
  EXPECT_NE(bad_input([] { parse_fp8_groups("attn,attn"); }).find("attn is there twice"), std::string::npos);
  for (const char* list : {"", ",", "attn,", "attn, moe", "ATTN"}) {
    EXPECT_NE(bad_input([&] { parse_fp8_groups(list); }).find("is not a group"), std::string::npos) << list;
  }
}

}  // namespace
}  // namespace trireme::checkpoint
