// Ranks that do not do the same are stopped with words that name one of them, and soon.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "base/error.h"
#include "comm/local.h"
#include "engine/rank.h"
#include "steps/tiny_models.h"

namespace trireme::testing {
namespace {

constexpr int64_t kSteps = 4;
constexpr int kOdd = 2;  // the rank that differs

model::Batch decode(int64_t rows, int64_t position) {
  model::Batch batch;
  for (int64_t r = 0; r < rows; ++r) batch.tokens.push_back(static_cast<int32_t>(r + 1));
  if (rows > 0) {
    batch.segments.push_back({rows, position, 0, {0}, true, {}});
    batch.logit_rows = {rows - 1};
  }
  return batch;
}

struct Plan {
  layout::Instance instance;
  int64_t patience = 20;
  // Changes the instance or the batches of the odd rank.
  std::function<void(layout::Instance&)> change;
  std::function<int64_t(int64_t step)> rows = [](int64_t) { return 3; };
  int64_t skipped = -1;  // the step that the odd rank leaves out
};

// The words of the failure; empty if there was none.
std::string failure_of(const Plan& plan, double* seconds = nullptr) {
  const RandomCheckpoint model(tiny_recipe());
  const auto begin = std::chrono::steady_clock::now();
  std::string words;
  try {
    const auto ranks = static_cast<int>(resolved(plan.instance, model.dir()).ranks());
    comm::run_local(ranks, checked(plan.patience), [&](comm::World& world) {
      layout::Instance instance = resolved(plan.instance, model.dir());
      const bool odd = world.rank() == kOdd;
      if (odd && plan.change) plan.change(instance);
      engine::Rank rank(model.dir(), instance, rank_options(ops::Precision::f32, 64, 1), world);
      for (int64_t step = 0; step < kSteps; ++step) {
        if (odd && step == plan.skipped) continue;
        const model::Batch batch = decode(odd ? plan.rows(step) : 3, 3 * step);
        rank.run({&batch, 1}, [](size_t, const model::ForwardOutput&) {});
      }
      rank.everyone().barrier();
    });
  } catch (const std::exception& error) {
    words = error.what();
  }
  if (seconds != nullptr) {
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return words;
}

bool names(const std::string& words, const std::string& part) { return words.find(part) != std::string::npos; }

Plan data_parallel() {
  Plan plan;
  plan.instance.dp = 4;
  plan.instance.weight_shard = 4;
  return plan;
}

TEST(Mismatch, NothingPlantedRunsThrough) {
  EXPECT_EQ(failure_of(data_parallel()), "");
  Plan bound = data_parallel();
  bound.instance.row_bound = 4;
  EXPECT_EQ(failure_of(bound), "");
}

TEST(Mismatch, AnotherRowBoundIsNamedBeforeAnythingRuns) {
  Plan plan = data_parallel();
  plan.instance.row_bound = 4;
  plan.change = [](layout::Instance& instance) { instance.row_bound = 5; };
  const std::string words = failure_of(plan);
  EXPECT_TRUE(names(words, "settings differ")) << words;
  EXPECT_TRUE(names(words, "rank 2 has")) << words;
  EXPECT_TRUE(names(words, "row_bound 5")) << words;
}

TEST(Mismatch, AnotherWayOfTheWeightShardIsNamed) {
  Plan plan = data_parallel();
  plan.change = [](layout::Instance& instance) { instance.move_smaller = false; };
  const std::string words = failure_of(plan);
  EXPECT_TRUE(names(words, "rank 2 has")) << words;
}

TEST(Mismatch, MoreRowsThanTheBoundEndTheJobAtOnce) {
  Plan plan = data_parallel();
  plan.instance.row_bound = 4;
  plan.rows = [](int64_t step) { return step == 2 ? 6 : 3; };
  double seconds = 0;
  const std::string words = failure_of(plan, &seconds);
  EXPECT_TRUE(names(words, "rank 2: ")) << words;
  EXPECT_TRUE(names(words, "6 rows") && names(words, "row_bound allows 4")) << words;
  EXPECT_LT(seconds, 15);
}

// Ranks of an attention group have one batch; blocks of other sizes show that one of them has another.
TEST(Mismatch, AnotherBatchInTheAttentionGroupIsNamed) {
  for (const int64_t rows : {5, 9}) {
    Plan plan;
    plan.instance.tp = 4;
    plan.rows = [rows](int64_t step) { return step == 1 ? rows : 3; };
    double seconds = 0;
    const std::string words = failure_of(plan, &seconds);
    EXPECT_TRUE(names(words, "rank 2")) << rows << ": " << words;
    EXPECT_LT(seconds, 15) << rows;
  }
}

TEST(Mismatch, AnotherBatchInAnotherStageIsNamed) {
  Plan plan;
  plan.instance.pipeline = {1, 1, 2};
  plan.rows = [](int64_t step) { return step == 1 ? 2 : 3; };
  double seconds = 0;
  const std::string words = failure_of(plan, &seconds);
  EXPECT_TRUE(names(words, "rank 2: ")) << words;
  EXPECT_TRUE(names(words, "3")) << words;
  EXPECT_LT(seconds, 15);
}

// Calls that fit those of the others one step later are seen when somebody has waited long enough: the odd rank for
// the others at its end, or they for it.
bool tells_the_odd_one(const std::string& words) {
  return names(words, "rank 2 of 4, which did not call") || names(words, "rank 2 waited 3 s for ranks 0, 1, 3");
}

TEST(Mismatch, AStepLeftOutIsNamed) {
  Plan plan = data_parallel();
  plan.patience = 3;
  plan.skipped = 1;
  std::string words = failure_of(plan);
  EXPECT_TRUE(tells_the_odd_one(words)) << words;
  plan.instance.row_bound = 4;
  words = failure_of(plan);
  EXPECT_TRUE(tells_the_odd_one(words)) << words;
}

// Blocks of the group have the same size whether a rank's batch has 3 rows or 1, so shapes alone would not tell.
TEST(Mismatch, AnotherBatchInAnAttentionGroupIsNamed) {
  Plan plan;
  plan.instance.tp = plan.instance.dcp = 4;
  plan.skipped = 1;
  EXPECT_TRUE(names(failure_of(plan), "rank 2 has another batch than rank 0")) << "a step left out";
  plan.skipped = -1;
  plan.rows = [](int64_t step) { return step == 1 ? 0 : 3; };
  EXPECT_TRUE(names(failure_of(plan), "rank 2 has another batch than rank 0")) << "no rows";
  plan.rows = [](int64_t step) { return step == 1 ? 1 : 3; };
  EXPECT_TRUE(names(failure_of(plan), "rank 2 has another batch than rank 0")) << "fewer rows, the same blocks";
}

// Without checks a mismatch must end in a failure too, not in a hang: an eager bank is prefetched on a stream while
// the stage fails.
TEST(Mismatch, AFailingStageOfAnEagerPipelineEndsSoon) {
  Plan plan;
  plan.instance.pipeline = {1, 1, 1, 1};
  plan.instance.eager_bank.enabled = true;
  plan.rows = [](int64_t step) { return step == 1 ? 2 : 3; };
  double seconds = 0;
  const std::string words = failure_of(plan, &seconds);
  EXPECT_TRUE(names(words, "rank 2: ") || names(words, "rank 3: ")) << words;
  EXPECT_LT(seconds, 15);
}

}  // namespace
}  // namespace trireme::testing
