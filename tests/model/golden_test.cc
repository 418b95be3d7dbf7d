// The model against golden logits and traces: random tiny checkpoints computed in float64 by an independent program,
// and a Kimi-Linear checkpoint computed by Hugging Face transformers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "support/loaded_model.h"
#include "support/tensors.h"

namespace trireme::testing {
namespace {

using ops::Precision;

struct Golden {
  std::string name;
  std::filesystem::path folder;
  int prompts;
  // Continuation rows from this step on are nearly tied and not compared: prompt -> step.
  std::map<int, int64_t> tied;
  // In bf16: median and 90th percentile of row errors, and the logit gap above which the best token must agree.
  double median, ninety, gap;
};

Golden tiny_a() { return {"tiny-a", shared_dir() / "golden/tiny-a", 9, {}, 3.3e-2, 5.4e-2, 0.3}; }
Golden tiny_b() { return {"tiny-b", shared_dir() / "golden/tiny-b", 9, {{0, 2}, {6, 12}}, 6.1e-2, 1.8e-1, 1.2}; }
Golden kimi_linear() { return {"kimi-linear-tiny", source_dir() / "tests/golden/kimi-linear-tiny", 4, {}, 0, 0, 0}; }

class GoldenTest : public ::testing::TestWithParam<std::string> {};

bool present(const Golden& g) { return std::filesystem::exists(g.folder / "golden.safetensors"); }

// The prompt and its greedy continuation, decoded step by step, in float32.
void check_prompt(const Golden& golden, LoadedModel& loaded, const TensorFile& file, int prompt) {
  const std::string p = fmt::format("prompt.{}.", prompt);
  SCOPED_TRACE(fmt::format("{} {}", golden.name, p));
  const std::vector<int32_t> tokens = file.ids(p + "tokens");
  const Tensor want = file.get(p + "logits");
  const Tensor want_greedy = file.get(p + "greedy_logits");
  const std::vector<int32_t> greedy = file.ids(p + "greedy_tokens");
  Pools pools = loaded.pools(1, static_cast<int64_t>(tokens.size() + greedy.size()));
  Sequence sequence(loaded.model, pools, 0);
  Matrix logits = sequence.feed(tokens);
  ASSERT_EQ(logits.cols(), want.cols());
  for (int64_t r = 0; r < want.rows(); ++r) {
    EXPECT_LE(relative_error(row_of(logits, r), want.row(r)), 1e-4) << "row " << r;
    EXPECT_EQ(argmax(row_of(logits, r)), argmax(want.row(r))) << "row " << r;
  }
  const auto tied = golden.tied.find(prompt);
  int64_t row = logits.rows() - 1;
  for (int64_t j = 0; j < want_greedy.rows(); ++j) {
    if (tied != golden.tied.end() && j >= tied->second) break;
    EXPECT_LE(relative_error(row_of(logits, row), want_greedy.row(j)), 1e-4) << "step " << j;
    const auto token = static_cast<int32_t>(argmax(row_of(logits, row)));
    ASSERT_EQ(token, greedy[static_cast<size_t>(j)]) << "step " << j;
    logits = sequence.feed({{token}});
    row = 0;
  }
}

// The reference backend is slow: it takes the short prompts only.
constexpr int64_t kReferenceLimit = 20;

void check_f32(const Golden& golden, const std::string& isa) {
  if (!present(golden)) GTEST_SKIP() << "no golden files at " << golden.folder;
  LoadedModel loaded(golden.folder, isa, Precision::f32);
  const TensorFile file(golden.folder / "golden.safetensors");
  for (int i = 0; i < golden.prompts; ++i) {
    if (isa == "reference" && file.tensors().at(fmt::format("prompt.{}.tokens", i)).shape[0] > kReferenceLimit)
      continue;
    check_prompt(golden, loaded, file, i);
  }
}

// Prompts 0 to 7 in bfloat16: as a population, since single rows may choose another expert.
void check_bf16(const Golden& golden, const std::string& isa, int prompts) {
  if (!present(golden)) GTEST_SKIP() << "no golden files at " << golden.folder;
  LoadedModel loaded(golden.folder, isa, Precision::bf16);
  const TensorFile file(golden.folder / "golden.safetensors");
  std::vector<double> errors;
  for (int i = 0; i < prompts; ++i) {
    const std::vector<int32_t> tokens = file.ids(fmt::format("prompt.{}.tokens", i));
    const Tensor want = file.get(fmt::format("prompt.{}.logits", i));
    Pools pools = loaded.pools(1, static_cast<int64_t>(tokens.size()));
    const Matrix logits = Sequence(loaded.model, pools, 0).feed(tokens);
    for (int64_t r = 0; r < want.rows(); ++r) {
      errors.push_back(relative_error(row_of(logits, r), want.row(r)));
      if (top_gap(want.row(r)) > golden.gap) {
        EXPECT_EQ(argmax(row_of(logits, r)), argmax(want.row(r))) << golden.name << " prompt " << i << " row " << r;
      }
    }
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], golden.median) << golden.name;
  EXPECT_LE(errors[errors.size() * 9 / 10], golden.ninety) << golden.name;
  EXPECT_GT(errors[errors.size() / 2], 1e-4) << golden.name << ": this is not bfloat16";
}

void expect_same_sets(const model::TraceTensor& got, const Tensor& want, const std::string& name) {
  const auto k = static_cast<size_t>(want.cols());
  for (size_t at = 0; at < want.values.size(); at += k) {
    const std::set<float> a(got.values.begin() + static_cast<int64_t>(at),
                            got.values.begin() + static_cast<int64_t>(at + k));
    const std::set<float> b(want.values.begin() + static_cast<int64_t>(at),
                            want.values.begin() + static_cast<int64_t>(at + k));
    EXPECT_EQ(a, b) << name << " row " << at / k;
  }
}

// Every trace tensor of the golden file, row by row.
void check_trace(const Golden& golden, const std::string& isa) {
  if (!present(golden)) GTEST_SKIP() << "no golden files at " << golden.folder;
  LoadedModel loaded(golden.folder, isa, Precision::f32);
  const TensorFile file(golden.folder / "golden.safetensors");
  const std::vector<int32_t> tokens = file.ids(fmt::format("prompt.{}.tokens", file.ids("trace.prompt").front()));
  Pools pools = loaded.pools(1, static_cast<int64_t>(tokens.size()));
  model::Trace trace;
  Sequence(loaded.model, pools, 0).feed(tokens, 0, &trace);
  int compared = 0;
  for (const auto& [full, info] : file.tensors()) {
    if (!full.starts_with("trace.") || full == "trace.prompt" || full == "trace.kda_state_layers") continue;
    const std::string name = full.substr(6);
    SCOPED_TRACE(golden.name + " " + full);
    ASSERT_TRUE(trace.tensors.contains(name));
    const model::TraceTensor& got = trace.tensors.at(name);
    const Tensor want = file.get(full);
    ++compared;
    EXPECT_EQ(got.integer, info.dtype == DType::i32);
    if (name == "kda_state") {  // the file may hold some of the layers
      const std::vector<int32_t> layers = file.ids("trace.kda_layers");
      const std::vector<int32_t> kept = file.ids("trace.kda_state_layers");
      const size_t each = want.values.size() / kept.size();
      for (size_t i = 0; i < kept.size(); ++i) {
        const auto l = static_cast<size_t>(std::find(layers.begin(), layers.end(), kept[i]) - layers.begin());
        EXPECT_LE(relative_error(std::span(got.values).subspan(l * each, each),
                                 std::span(want.values).subspan(i * each, each)),
                  1e-4);
      }
      continue;
    }
    ASSERT_EQ(got.shape, want.shape);
    if (name == "router_ids") {
      expect_same_sets(got, want, name);
      continue;
    }
    for (int64_t r = 0; r < want.rows(); ++r) {
      const auto at = static_cast<size_t>(r * want.cols());
      EXPECT_LE(relative_error(std::span(got.values).subspan(at, static_cast<size_t>(want.cols())), want.row(r)), 1e-4)
          << "row " << r;
    }
  }
  EXPECT_EQ(compared, 28);
}

TEST_P(GoldenTest, TinyALogitsAndGreedyInFloat32) { check_f32(tiny_a(), GetParam()); }

TEST_P(GoldenTest, TinyBLogitsAndGreedyInFloat32) { check_f32(tiny_b(), GetParam()); }

TEST_P(GoldenTest, TinyATrace) { check_trace(tiny_a(), GetParam()); }

TEST_P(GoldenTest, TinyBTrace) { check_trace(tiny_b(), GetParam()); }

// The population is prompts 0 to 7, or for the slow reference backend those that are not the longest.
TEST_P(GoldenTest, TinyAInBfloat16) { check_bf16(tiny_a(), GetParam(), GetParam() == "reference" ? 6 : 8); }

TEST_P(GoldenTest, TinyBInBfloat16) { check_bf16(tiny_b(), GetParam(), GetParam() == "reference" ? 6 : 8); }

TEST_P(GoldenTest, KimiLinearMatchesTransformersInFloat32) { check_f32(kimi_linear(), GetParam()); }

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const std::string_view isa : ops::available_isas()) names.emplace_back(isa);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Isa, GoldenTest, ::testing::ValuesIn(isas()), [](const auto& param) { return param.param; });

}  // namespace
}  // namespace trireme::testing
