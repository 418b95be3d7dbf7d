#include "layout/deployment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "layout/configs.h"

namespace trireme::layout {
namespace {

constexpr const char* kWhole = R"(model = "../models/k3-nano"

[[instance]]
name = "p0"
role = "prefill"
pipeline = [4, 3, 3, 3]
ranks_per_host = 2
[instance.prefill]
chunk_tokens = 16384
dynamic_chunking = true
async_depth = 2
warmup = [64, 300]
[instance.eager_bank]
stages = [1, 2]
prefetch = false

[[instance]]
name = "d0"
role = "decode"
attention = { dp = 2, dcp = 8 }
experts = { ep = 16, max_dispatch_tokens = 128 }
weight_shard = { ranks = 8, move_smaller = false }
vocab = 8
row_bound = 24
)";

TEST(Deployment, ReadsEveryKey) {
  const Deployment deployment = parse_deployment(kWhole, "some/folder/both.toml");
  EXPECT_EQ(deployment.name, "both");
  EXPECT_EQ(deployment.model->lexically_normal(), "some/models/k3-nano");
  ASSERT_EQ(deployment.instances.size(), 2U);
  const Instance& p = deployment.instances[0];
  EXPECT_EQ(p.name, "p0");
  EXPECT_EQ(p.role, Role::prefill);
  EXPECT_EQ(p.pipeline, (std::vector<int64_t>{4, 3, 3, 3}));
  EXPECT_EQ(p.pipeline_stages, 0);
  EXPECT_EQ(p.ranks_per_host, 2);
  EXPECT_EQ(p.chunk_tokens, 16384);
  EXPECT_TRUE(p.dynamic_chunking);
  EXPECT_EQ(p.async_depth, 2);
  EXPECT_EQ(p.warmup, (std::vector<int64_t>{64, 300}));
  EXPECT_TRUE(p.eager_bank.enabled);
  EXPECT_EQ(p.eager_bank.stages, (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(p.eager_bank.prefetch);
  const Instance& d = deployment.instances[1];
  EXPECT_EQ(d.role, Role::decode);
  EXPECT_EQ(d.dp, 2);
  EXPECT_EQ(d.tp, 8);
  EXPECT_EQ(d.dcp, 8);
  EXPECT_EQ(d.ep, 16);
  EXPECT_EQ(d.max_dispatch_tokens, 128);
  EXPECT_EQ(d.weight_shard, 8);
  EXPECT_FALSE(d.move_smaller);
  EXPECT_EQ(d.vocab, 8);
  EXPECT_EQ(d.row_bound, 24);
  EXPECT_FALSE(d.eager_bank.enabled);
}

TEST(Deployment, LeavesDefaultsAlone) {
  const Deployment deployment = parse_deployment("[[instance]]\n", "x.toml");
  EXPECT_FALSE(deployment.model);
  const Instance& instance = deployment.instances.at(0);
  EXPECT_EQ(instance.name, "unified");
  EXPECT_EQ(instance.role, Role::unified);
  EXPECT_TRUE(instance.pipeline.empty());
  EXPECT_EQ(instance.tp, 1);
  EXPECT_FALSE(instance.row_bound);
  EXPECT_EQ(instance.chunk_tokens, 8192);
  EXPECT_EQ(resolve(instance, testing::small()).ranks(), 1);
}

TEST(Deployment, TakesANumberOfStagesAndShortForms) {
  const auto one = [](const std::string& keys) {
    return parse_deployment("[[instance]]\n" + keys, "x.toml").instances.at(0);
  };
  EXPECT_EQ(one("pipeline = 3").pipeline_stages, 3);
  EXPECT_EQ(resolve(one("pipeline = 3"), testing::small()).stages(), 3);
  EXPECT_EQ(one("weight_shard = 4").weight_shard, 4);
  EXPECT_TRUE(one("weight_shard = 4").move_smaller);
  EXPECT_TRUE(one("[instance.eager_bank]").eager_bank.enabled);
  EXPECT_EQ(one("attention = { tp = 8, dcp = 2 }").tp, 8);
  EXPECT_EQ(one("[instance.attention]\ndp = 3").dp, 3);
  EXPECT_EQ(parse_deployment("model = \"/abs/m\"\n[[instance]]\n", "a/b.toml").model, "/abs/m");
}

struct Bad {
  std::string text;
  int line;
  std::string part;
};

TEST(Deployment, RefusesBadFilesWithLineAndAdvice) {
  const std::string head = "[[instance]]\n";
  const std::vector<Bad> bad = {
      {"model = \"x\"", 1, "no [[instance]]"},
      {"", 1, "no [[instance]]"},
      {"[instance]\nname = \"a\"", 1, "[[instance]]"},
      {"instance = []", 1, "[[instance]]"},
      {"instance = 3", 1, "[[instance]]"},
      {head + "name = ", 2, "not TOML"},
      {head + "vocab = 2\nvocab = 4", 3, "vocab"},
      {head + "[instance.prefill]\nchunk_tokens = 4\n[instance.prefill]\n", 4, "prefill"},
      {"modell = \"x\"\n" + head, 1, "unknown key modell in the file's root; the nearest known key is model"},
      {head + "pipline = [1]", 2, "unknown key pipline in [[instance]]; the nearest known key is pipeline"},
      {head + "chunk_tokens = 64", 2, "unknown key chunk_tokens in [[instance]]; it belongs to prefill"},
      {head + "attention = { ddp = 2 }", 2, "unknown key ddp in attention; the nearest known key is dp"},
      {head + "experts = { max_dispatch = 2 }", 2, "the nearest known key is max_dispatch_tokens"},
      {head + "weight_shard = { rank = 2 }", 2, "the nearest known key is ranks"},
      {head + "[instance.prefill]\nchunk = 4", 3, "the nearest known key is"},
      {head + "[instance.eager_bank]\nstage = [1]", 3, "the nearest known key is stages"},
      {head + "\"a\\nb\" = 1", 2, "unknown key a\\x0ab"},
      {head + "name = 3", 2, "name holds an integer; a string"},
      {head + "name = \"\"", 2, "name is empty"},
      {head + "name = \"p 0\"", 2, "name = \"p 0\" has other characters"},
      {head + "role = \"prefil\"", 2, "role = \"prefil\" is unknown; \"unified\", \"prefill\" or \"decode\""},
      {head + "pipeline = \"4,3\"", 2, "pipeline holds neither"},
      {head + "pipeline = []", 2, "pipeline = [] has no effect"},
      {head + "pipeline = [4, 0]", 2, "pipeline = 0 is out of range; 1 to"},
      {head + "pipeline = [4, 3.5]", 2, "pipeline holds a float; an integer"},
      {head + "pipeline = 0", 2, "pipeline = 0 is out of range"},
      {head + "attention = 8", 2, "attention holds an integer; a table"},
      {head + "attention = {}", 2, "attention is empty"},
      {head + "attention = { dp = 0 }", 2, "attention.dp = 0 is out of range"},
      {head + "attention = { tp = \"8\" }", 2, "attention.tp holds a string; an integer"},
      {head + "attention = { dcp = -1 }", 2, "attention.dcp = -1 is out of range"},
      {head + "attention = { dp = 9223372036854775807 }", 2, "attention.dp = 9223372036854775807 is out of range"},
      {head + "experts = { ep = 0 }", 2, "experts.ep = 0 is out of range"},
      {head + "attention = { dp = 2 }\nexperts = { ep = 1, max_dispatch_tokens = 8 }", 3,
       "experts.max_dispatch_tokens = 8 has no effect"},
      {head + "experts = { max_dispatch_tokens = 8 }", 2, "experts.max_dispatch_tokens = 8 has no effect"},
      {head + "weight_shard = true", 2, "weight_shard holds neither"},
      {head + "weight_shard = { move_smaller = true }", 2, "weight_shard.move_smaller has no effect"},
      {head + "weight_shard = { ranks = 1, move_smaller = false }", 2, "weight_shard.move_smaller has no effect"},
      {head + "weight_shard = { ranks = 2, move_smaller = 1 }", 2,
       "weight_shard.move_smaller holds an integer; true or false"},
      {head + "vocab = 0", 2, "vocab = 0 is out of range"},
      {head + "ranks_per_host = 0", 2, "ranks_per_host = 0 is out of range"},
      {head + "row_bound = 8", 2, "row_bound = 8 has no effect"},
      {head + "[instance.prefill]\n", 2, "prefill is empty"},
      {head + "[instance.prefill]\nchunk_tokens = 0", 3, "prefill.chunk_tokens = 0 is out of range"},
      {head + "[instance.prefill]\ndynamic_chunking = \"on\"", 3,
       "prefill.dynamic_chunking holds a string; true or false"},
      {head + "[instance.prefill]\nasync_depth = -1", 3, "prefill.async_depth = -1 is out of range; 0 to"},
      {head + "[instance.prefill]\nwarmup = 64", 3, "prefill.warmup holds an integer; an array"},
      {head + "[instance.prefill]\nwarmup = []", 3, "prefill.warmup = [] has no effect"},
      {head + "[instance.eager_bank]\nstages = [-1]", 3, "eager_bank.stages = -1 is out of range"},
      {head + "[instance.eager_bank]\nprefetch = 1979-05-27", 3, "eager_bank.prefetch holds a date or time"},
      {head + "[instance.speculation]\ngamma = 4", 2, "speculation is not supported yet in a deployment file"},
      {head + "name = \"a\"\n" + head + "name = \"a\"", 4, "name = \"a\" is taken"},
      {head + head, 2, "name = \"unified\" is taken"},
      {"model = 3\n" + head, 1, "model holds an integer"},
      {"model = \"\"\n" + head, 1, "model is empty"},
  };
  EXPECT_GE(bad.size(), 25U);
  for (const Bad& file : bad) {
    try {
      parse_deployment(file.text, "bad.toml");
      ADD_FAILURE() << "accepted:\n" << file.text;
    } catch (const BadInput& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("bad.toml:" + std::to_string(file.line) + ": ")) << message << "\n" << file.text;
      EXPECT_NE(message.find(file.part), std::string::npos) << message << "\nlacks " << file.part;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(Deployment, RefusesFilesThatAreNot) {
  const auto message_of = [](const std::string& name) -> std::string {
    try {
      read_deployment(name);
    } catch (const BadInput& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message_of("/nowhere/x.toml").find("prefill-pp16, decode-dp16"), std::string::npos);
  EXPECT_NE(message_of("/dev/null").find("/dev/null"), std::string::npos);
  EXPECT_NE(message_of("").find("no deployment file"), std::string::npos);
}

TEST(Deployment, ReadsAFile) {
  const auto path =
      std::filesystem::temp_directory_path() / ("trireme-deployment-" + std::to_string(::getpid()) + ".toml");
  std::ofstream(path) << "model = \"m\"\n[[instance]]\npipeline = 2\n";
  const Deployment deployment = read_deployment(path.string());
  std::filesystem::remove(path);
  EXPECT_EQ(deployment.name, path.stem().string());
  EXPECT_EQ(deployment.model, path.parent_path() / "m");
  EXPECT_EQ(deployment.instances.at(0).pipeline_stages, 2);
}

TEST(BuiltIns, FitKimiK3) {
  const auto names = built_in_deployments();
  const std::vector<std::pair<std::string, int64_t>> ranks = {{"prefill-pp16", 16},
                                                              {"decode-dp16", 16},
                                                              {"decode-dp2-dcp8", 16},
                                                              {"prefill-tp4-pp8-ep4", 32},
                                                              {"decode-tp32", 32}};
  ASSERT_EQ(names.size(), ranks.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(names[i], ranks[i].first);
    const Deployment deployment = read_deployment(std::string(names[i]));
    EXPECT_EQ(deployment.name, names[i]);
    EXPECT_FALSE(deployment.model);
    ASSERT_EQ(deployment.instances.size(), 1U);
    const Instance instance = resolve(deployment.instances[0], testing::k3());
    EXPECT_EQ(instance.ranks(), ranks[i].second) << names[i];
    EXPECT_EQ(instance.role, names[i].starts_with("prefill") ? Role::prefill : Role::decode);
  }
}

TEST(Examples, AreReadable) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRIREME_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const Deployment deployment = read_deployment(entry.path().string());
    const bool nano = deployment.model && std::filesystem::exists(*deployment.model / "config.json");
    EXPECT_EQ(deployment.model.has_value(), entry.path().stem().string().starts_with("nano")) << entry.path();
    EXPECT_EQ(deployment.model.has_value(), nano) << entry.path();
    const auto config = nano ? checkpoint::read_config(*deployment.model) : testing::k3();
    for (const Instance& instance : deployment.instances)
      EXPECT_GE(resolve(instance, config).ranks(), 1) << entry.path();
  }
  EXPECT_GE(files, 5);
}

}  // namespace
}  // namespace trireme::layout
