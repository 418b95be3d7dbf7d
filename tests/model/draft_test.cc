// The two drafts of k3-nano against reference values of an independent float32 implementation.
#include "model/draft.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "support/loaded_model.h"
#include "support/tensors.h"

namespace trireme::model {
namespace {

using testing::relative_error;
using testing::Tensor;

std::filesystem::path reference_path() { return testing::shared_dir() / "nano" / "reference.safetensors"; }

class DraftTest : public ::testing::TestWithParam<const char*> {
 protected:
  DraftTest()
      : dir_(testing::source_dir() / "models" / (std::string("k3-nano-") + GetParam())),
        pool_(2),
        ops_(ops::make_ops("auto", ops::Precision::f32, pool_)),
        checkpoint_(checkpoint::Checkpoint::open(testing::source_dir() / "models" / "k3-nano")),
        account_(plan()),
        model_(checkpoint_, *ops_, account_),
        draft_(dir_, model_, account_) {}

  ledger::Plan plan() const {
    ledger::Plan plan = ledger::plan_memory(checkpoint_, *ops_, {});
    for (ledger::Line& line : Draft::plan(dir_, *ops_, 1)) plan.lines.push_back(std::move(line));
    return plan;
  }

  // A context with memory of its own.
  struct Window {
    explicit Window(const checkpoint::DraftConfig& config) {
      context.capacity = Draft::context_capacity(config);
      for (int64_t layer = 0; layer < 2 * config.layers; ++layer) {
        memory.emplace_back(context.capacity, config.kv_width());
      }
      for (int64_t layer = 0; layer < config.layers; ++layer) {
        context.keys.push_back(memory[static_cast<size_t>(layer)].data());
        context.values.push_back(memory[static_cast<size_t>(config.layers + layer)].data());
      }
    }
    std::vector<Matrix> memory;
    DraftContext context;
  };

  // The taps of the reference prompt's rows, as the target computes them.
  std::vector<Matrix> taps(const std::vector<int32_t>& ids, int64_t rows) {
    testing::Pools pools(model_.config(), ops::Precision::f32, 1, rows);
    Batch batch;
    batch.tokens.assign(ids.begin(), ids.begin() + rows);
    batch.segments.push_back({rows, 0, 0, pools.pages(0), true, {}});
    return model_.forward(batch, pools.views()).taps;
  }

  static std::vector<ConstRows> rows_of(const std::vector<Matrix>& taps, int64_t begin, int64_t count) {
    std::vector<ConstRows> views;
    for (const Matrix& tap : taps) views.push_back(tap.view().row_range(begin, count));
    return views;
  }

  std::filesystem::path dir_;
  ThreadPool pool_;
  std::unique_ptr<ops::Ops> ops_;
  checkpoint::Checkpoint checkpoint_;
  ledger::Account account_;
  Model model_;
  Draft draft_;
};

TEST_P(DraftTest, ContextAndProposalsMatchTheReference) {
  if (!std::filesystem::exists(reference_path())) GTEST_SKIP() << "no " << reference_path();
  const testing::TensorFile file(reference_path());
  const std::string p = std::string("p0.") + GetParam();
  const std::vector<int32_t> ids = file.ids("p0.ids");
  const int64_t prompt = file.ids("p0.prompt_len")[0];
  const std::vector<Matrix> taps = this->taps(ids, prompt);

  Window whole(draft_.config());
  draft_.add_context(rows_of(taps, 0, prompt), whole.context);
  ASSERT_EQ(whole.context.rows, prompt);
  const auto values = static_cast<size_t>(prompt * draft_.config().kv_width());
  EXPECT_LT(relative_error({whole.context.keys[0], values}, file.get(p + ".k.0").values), 1e-4);
  EXPECT_LT(relative_error({whole.context.values[0], values}, file.get(p + ".v.0").values), 1e-4);

  const int32_t anchor = ids[static_cast<size_t>(prompt)];
  const DraftContext* const context = &whole.context;
  EXPECT_EQ(draft_.propose({&anchor, 1}, {&context, 1}, 4)[0], file.ids(p + ".tokens"));
}

// Tokens that come one by one, or three and then the rest, leave the same context, though it slides down in between.
TEST_P(DraftTest, ContextDoesNotDependOnHowItGrows) {
  const int64_t rows = 3 * draft_.config().max_window() + 11;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<int32_t>((i * 37 + 11) % 1700));
  const std::vector<Matrix> taps = this->taps(ids, rows);
  Window whole(draft_.config()), pieces(draft_.config());
  draft_.add_context(rows_of(taps, 0, rows), whole.context);
  for (int64_t at = 0; at < rows;) {
    const int64_t count = std::min<int64_t>(at % 5 + 1, rows - at);
    draft_.add_context(rows_of(taps, at, count), pieces.context);
    at += count;
  }
  EXPECT_EQ(whole.context.first_position + whole.context.rows, rows);
  EXPECT_EQ(pieces.context.first_position + pieces.context.rows, rows);
  EXPECT_GE(pieces.context.rows, draft_.config().max_window());
  const int32_t anchors[] = {40, 40};
  const DraftContext* const contexts[] = {&whole.context, &pieces.context};
  const auto drafts = draft_.propose(anchors, contexts, draft_.config().max_gamma());
  EXPECT_EQ(drafts[0], drafts[1]);
  EXPECT_EQ(static_cast<int64_t>(drafts[0].size()), draft_.config().max_gamma());
}

TEST_P(DraftTest, IsRefusedIfMadeForAnotherTarget) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / ("trireme-draft-" + std::to_string(getpid()) + GetParam());
  fs::create_directories(copy);
  for (const auto& file : fs::directory_iterator(dir_)) fs::copy(file.path(), copy / file.path().filename());
  std::ifstream in(dir_ / "config.json");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string key = "\"num_target_layers\": 13";
  text.replace(text.find(key), key.size(), "\"num_target_layers\": 14");
  fs::remove(copy / "config.json");
  std::ofstream(copy / "config.json") << text;
  ledger::Account account(plan());
  model::Model model(checkpoint_, *ops_, account);
  try {
    const Draft draft(copy, model, account);
    ADD_FAILURE() << "it was taken";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("num_target_layers is 14, but the target has 13 layers"),
              std::string::npos)
        << error.what();
  }
  fs::remove_all(copy);
}

TEST_P(DraftTest, TakesWhatItPlanned) {
  const ledger::Plan& plan = account_.plan();
  EXPECT_EQ(account_.taken("weights.draft"), plan.line("weights.draft").bytes);
}

INSTANTIATE_TEST_SUITE_P(Nano, DraftTest, ::testing::Values("dspark", "dflash"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace trireme::model
