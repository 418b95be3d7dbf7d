// k3-nano, a trained model, against an independent PyTorch implementation in float32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/loaded_model.h"
#include "support/tensors.h"

namespace trireme::testing {
namespace {

using ops::Precision;

// A bf16 engine must choose the same token where the best logit leads by more than this (the model's documentation says
// so).
constexpr double kClearMargin = 0.3;

std::filesystem::path nano() { return source_dir() / "models/k3-nano"; }
std::filesystem::path full_reference() { return shared_dir() / "nano/reference.safetensors"; }

class NanoTest : public ::testing::TestWithParam<std::string> {
 protected:
  static bool slow() { return GetParam() == "reference"; }
};

// Logits after the wanted positions of one sequence, in pieces as a server feeds them.
Matrix logits_after(LoadedModel& loaded, const std::vector<int32_t>& ids, const std::vector<int32_t>& rows) {
  Pools pools = loaded.pools(1, static_cast<int64_t>(ids.size()));
  model::Batch batch;
  batch.tokens = ids;
  batch.segments.push_back(Sequence(loaded.model, pools, 0).segment(static_cast<int64_t>(ids.size())));
  batch.logit_rows.assign(rows.begin(), rows.end());
  return loaded.model.forward(batch, pools.views()).logits;
}

// Both references are float32, so they are up to 1e-3 apart in logits of about 10.
void check_rows(const Matrix& got, const Tensor& want, Precision precision) {
  ASSERT_EQ(got.rows(), want.rows());
  for (int64_t r = 0; r < want.rows(); ++r) {
    const double error = relative_error(row_of(got, r), want.row(r));
    if (precision == Precision::f32) {
      EXPECT_LE(error, 1e-4) << "row " << r;
    } else {
      EXPECT_GT(error, 1e-5) << "row " << r << ": this is not bfloat16";
    }
    if (precision == Precision::f32 || top_gap(want.row(r)) > kClearMargin) {
      EXPECT_EQ(argmax(row_of(got, r)), argmax(want.row(r))) << "row " << r;
    }
  }
}

TEST_P(NanoTest, KeptRowsOfSevenPrompts) {
  const TensorFile file(source_dir() / "tests/golden/k3-nano-rows.safetensors");
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    LoadedModel loaded(nano(), GetParam(), precision);
    for (int i = 0; i < 7; ++i) {
      SCOPED_TRACE(fmt::format("prompt {} {}", i, precision == Precision::f32 ? "f32" : "bf16"));
      const std::string p = fmt::format("p{}.", i);
      const std::vector<int32_t> rows = file.ids(p + "rows");
      std::vector<int32_t> ids = file.ids(p + "ids");
      ids.resize(static_cast<size_t>(rows.back()) + 1);
      // One short prompt on the slow backend, the long ones on one of the fast ones.
      if (slow() && (i != 4 || precision == Precision::bf16)) continue;
      if (ids.size() > 300 && GetParam() != ops::available_isas().front()) continue;
      check_rows(logits_after(loaded, ids, rows), file.get(p + "logits"), precision);
    }
  }
}

// The kept file has a prompt's greedy text: fed step by step, every step must choose it (near ties, one in a story,
// excepted).
TEST_P(NanoTest, GreedyTextStepByStep) {
  if (slow()) GTEST_SKIP() << "too slow for the reference backend";
  const TensorFile file(source_dir() / "tests/golden/k3-nano-rows.safetensors");
  LoadedModel loaded(nano(), GetParam(), Precision::f32);
  for (const int i : {0, 1}) {
    const std::vector<int32_t> ids = file.ids(fmt::format("p{}.ids", i));
    const auto prompt = static_cast<size_t>(file.ids(fmt::format("p{}.prompt_len", i)).front());
    Pools pools = loaded.pools(1, static_cast<int64_t>(ids.size()));
    Sequence sequence(loaded.model, pools, 0);
    const std::span<const int32_t> all(ids);
    Matrix logits = sequence.feed(all.first(prompt));
    for (size_t at = prompt; at < ids.size(); ++at) {
      ASSERT_EQ(argmax(row_of(logits, logits.rows() - 1)), ids[at]) << "prompt " << i << " position " << at;
      logits = sequence.feed(all.subspan(at, 1));
    }
  }
}

TEST_P(NanoTest, EveryReferenceLogit) {
  if (!std::filesystem::exists(full_reference())) GTEST_SKIP() << "no " << full_reference();
  if (slow()) GTEST_SKIP() << "too slow for the reference backend";
  const TensorFile file(full_reference());
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    LoadedModel loaded(nano(), GetParam(), precision);
    for (int i = 0; i < 7; ++i) {
      SCOPED_TRACE(fmt::format("prompt {} {}", i, precision == Precision::f32 ? "f32" : "bf16"));
      const Tensor want = file.get(fmt::format("p{}.logits", i));
      std::vector<int32_t> rows(static_cast<size_t>(want.rows()));
      std::iota(rows.begin(), rows.end(), file.ids(fmt::format("p{}.logits_first", i)).front());
      check_rows(logits_after(loaded, file.ids(fmt::format("p{}.ids", i)), rows), want, precision);
    }
  }
}

TEST_P(NanoTest, StreamsTapsAndStates) {
  if (!std::filesystem::exists(full_reference())) GTEST_SKIP() << "no " << full_reference();
  if (slow()) GTEST_SKIP() << "too slow for the reference backend";
  const TensorFile file(full_reference());
  LoadedModel loaded(nano(), GetParam(), Precision::f32);
  std::vector<int64_t> layers(12);
  std::iota(layers.begin(), layers.end(), 0);
  loaded.model.set_taps(layers);
  const std::vector<int32_t> ids = file.ids("p0.ids");
  const auto count = static_cast<int64_t>(ids.size());
  Pools pools = loaded.pools(1, count);
  model::Batch batch{ids, {Sequence(loaded.model, pools, 0).segment(count)}, {}};
  model::Trace trace;
  const model::ForwardOutput out = loaded.model.forward(batch, pools.views(), &trace);

  const Tensor taps = file.get("p0.taps");
  for (int64_t l = 0; l < 12; ++l) {
    for (int64_t t = 0; t < count; ++t) {
      EXPECT_LE(relative_error(row_of(out.taps[static_cast<size_t>(l)], t), taps.row(l * count + t)), 1e-4)
          << l << " " << t;
    }
  }
  const Tensor prefix = file.get("p0.prefix");
  const std::span<const float> hidden(trace.tensors.at("hidden").values);
  for (int64_t r = 0; r < prefix.rows(); ++r) {
    EXPECT_LE(relative_error(hidden.subspan(static_cast<size_t>(r * 128), 128), prefix.row(r)), 1e-4) << r;
  }
  // Slots and pages as they lie in memory, so that their documented layouts are tested. KDA layers 0 and 8 are numbers
  // 0 and 6.
  for (const auto& [layer, index] : {std::pair<int, size_t>{0, 0}, {8, 6}}) {
    const model::KdaLayerView& view = pools.views().kda[index];
    const Tensor state = file.get(fmt::format("p0.kda_state.{}", layer));
    const Tensor conv = file.get(fmt::format("p0.conv_state.{}", layer));
    EXPECT_LE(relative_error({view.recurrent, state.values.size()}, state.values), 1e-4) << layer;
    EXPECT_LE(relative_error({view.conv, conv.values.size()}, conv.values), 1e-4) << layer;
  }
  const std::vector<int32_t> pages = pools.pages(0);
  for (const auto& [layer, index] : {std::pair<int, size_t>{3, 0}, {12, 3}}) {
    const ops::LatentPages& view = pools.views().latent[index];
    const Tensor cache = file.get(fmt::format("p0.mla_cache.{}", layer));
    for (int64_t t = 0; t < count; ++t) {
      const auto page = pages[static_cast<size_t>(t / ops::kPageTokens)];
      const auto* row =
          reinterpret_cast<const float*>(view.base + page * view.page_bytes()) + t % ops::kPageTokens * view.width;
      EXPECT_LE(relative_error({row, 576}, cache.row(t)), 1e-4) << layer << " " << t;
    }
  }
}

// The tap after the last layer is the output mix, which the final norm reads.
TEST(NanoTap, LastLayerIsTheOutputMix) {
  LoadedModel loaded(nano(), "auto", Precision::f32);
  loaded.model.set_taps({12, 3});
  Pools pools = loaded.pools(1, 64);
  const model::Batch batch{{1, 2, 3}, {Sequence(loaded.model, pools, 0).segment(3)}, {}};
  model::Trace trace;
  const model::ForwardOutput traced = loaded.model.forward(batch, pools.views(), &trace);
  const std::span<const float> mix(trace.tensors.at("final_mix").values);
  EXPECT_TRUE(same_bits({traced.taps[0].data(), mix.size()}, mix));
  const model::ForwardOutput plain = loaded.model.forward(batch, pools.views());
  ASSERT_EQ(plain.taps.size(), 2U);
  EXPECT_TRUE(same_bits({plain.taps[0].data(), mix.size()}, mix));
  EXPECT_TRUE(same_bits(row_of(plain.taps[1], 2), row_of(traced.taps[1], 2)));
  EXPECT_EQ(plain.logits.rows(), 0);
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const std::string_view isa : ops::available_isas()) names.emplace_back(isa);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Isa, NanoTest, ::testing::ValuesIn(isas()), [](const auto& param) { return param.param; });

}  // namespace
}  // namespace trireme::testing
