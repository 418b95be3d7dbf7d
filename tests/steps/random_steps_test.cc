// Attention groups with unequal work, step after step: nobody hangs, every collective fits, and the logits of every
// sequence are those of the sequence alone on one rank. TRIREME_STEPS: steps of all layouts together.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/local.h"
#include "engine/rank.h"
#include "steps/script.h"
#include "steps/tiny_models.h"
#include "support/loaded_model.h"

namespace trireme::testing {
namespace {

constexpr double kTolerance = 2e-5;
constexpr int64_t kChecked = 3;  // every third sequence is run alone

struct Case {
  std::string name;
  layout::Instance instance;
  double share = 0;  // of all steps
  int64_t most_rows = 48;
  ops::Precision precision = ops::Precision::f32;
  bool linear = false;  // a Kimi-Linear model
};

ModelRecipe recipe_of(const Case& c) {
  ModelRecipe recipe = tiny_recipe();
  recipe.linear = c.linear;
  return recipe;
}

std::vector<Case> cases() {
  layout::Instance dp16;
  dp16.dp = 16;
  layout::Instance dcp;
  dcp.dp = 2;
  dcp.tp = dcp.dcp = 8;
  layout::Instance shard;
  shard.dp = 4;
  shard.tp = 2;
  shard.weight_shard = 8;
  shard.vocab = 8;
  layout::Instance stages;
  stages.dp = 4;
  stages.pipeline = {2, 2};
  stages.weight_shard = 4;
  stages.vocab = 2;
  layout::Instance eager;
  eager.dp = 2;
  eager.pipeline = {1, 2, 1};
  eager.eager_bank.enabled = true;
  eager.async_depth = 1;
  layout::Instance bound;
  bound.dp = 8;
  bound.weight_shard = 8;
  bound.row_bound = 12;
  return {{"Dp16Ep16", dp16, 0.2},
          {"Dp2Dcp8Ep16", dcp, 0.2},
          {"Dp4Tp2Shard8Vocab8", shard, 0.15},
          {"Pp2Dp4Shard4", stages, 0.15},
          {"Pp2Dp4Shard4Bf16", stages, 0.05, 48, ops::Precision::bf16},
          {"Pp3Dp2Eager", eager, 0.1},
          {"Dp8RowBound", bound, 0.05, 12},
          {"Dp8RowBoundBf16", bound, 0.05, 12, ops::Precision::bf16},
          {"LinearDp4Tp2Shard8Vocab8", shard, 0.025, 48, ops::Precision::f32, true},
          {"LinearPp2Dp4Shard4", stages, 0.025, 48, ops::Precision::f32, true}};
}

int64_t all_steps() {
  const char* text = std::getenv("TRIREME_STEPS");
  return text != nullptr ? std::atoll(text) : 2000;
}

struct Logits {
  Script::Wanted wanted;
  std::vector<float> row;
};

// One run of a layout.
class LayoutRun {
 public:
  LayoutRun(const Case& c, const std::filesystem::path& model, int64_t steps)
      : model_(model),
        instance_(resolved(c.instance, model)),
        steps_(steps),
        precision_(c.precision),
        logits_(static_cast<size_t>(instance_.dp)) {
    options_.seed = 17 + static_cast<uint64_t>(instance_.ranks());
    options_.groups = instance_.dp;
    options_.vocab = checkpoint::read_config(model).vocab;
    options_.page_tokens = ops::kPageTokens * instance_.dcp;
    options_.most_rows = c.most_rows;
  }

  void go() {
    comm::run_local(static_cast<int>(instance_.ranks()), checked(), [this](comm::World& world) { body(world); });
  }

  // Runs sequences alone and compares. Returns how many rows were compared.
  int64_t compare() const {
    const LoadedModel alone(model_, "auto", precision_);
    int64_t rows = 0;
    for (int64_t g = 0; g < instance_.dp; ++g) {
      Script script = script_of(g);
      for (int64_t s = 0; s < steps_; ++s) script.next();
      std::map<int64_t, std::vector<const Logits*>> by_sequence;
      for (const Logits& l : logits_[static_cast<size_t>(g)]) by_sequence[l.wanted.sequence].push_back(&l);
      for (const auto& [number, list] : by_sequence) {
        Pools pools = alone.pools(1, options_.most_tokens);
        const Matrix expected = Sequence(alone.model, pools, 0).feed(script.sequences().at(number));
        for (const Logits* l : list) {
          const double error = relative_error(l->row, row_of(expected, l->wanted.position));
          EXPECT_LE(error, instance_.tp == 1 ? 0.0 : kTolerance)
              << "group " << g << ", sequence " << number << ", position " << l->wanted.position;
          ++rows;
        }
      }
    }
    return rows;
  }

 private:
  Script script_of(int64_t group) const {
    ScriptOptions options = options_;
    options.group = group;
    return Script(options);
  }

  void body(comm::World& world) {
    engine::Rank rank(model_, instance_,
                      rank_options(precision_, options_.pages * options_.page_tokens, options_.slots), world);
    Script script = script_of(rank.place().dp);
    for (int64_t step = 0; step < steps_;) {
      const auto address = static_cast<uint64_t>(step);
      int64_t count = 1;
      if (instance_.stages() > 1) count += static_cast<int64_t>(uniform_at(options_.seed, address, 2000) * 4);
      count = std::min(count, steps_ - step);
      // A rank that is late now and then.
      if (uniform_at(options_.seed, address, 3000 + static_cast<uint64_t>(world.rank())) < 0.01) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      run(rank, script, count);
      step += count;
    }
    rank.everyone().barrier();
  }

  void run(engine::Rank& rank, Script& script, int64_t count) {
    std::vector<Script::Step> steps;
    std::vector<model::Batch> batches;
    for (int64_t i = 0; i < count; ++i) {
      steps.push_back(script.next());
      batches.push_back(steps.back().batch);
    }
    rank.run(batches, [&](size_t i, const model::ForwardOutput& output) {
      const Script::Step& step = steps[i];
      if (step.verifies()) {
        if (output.replay == nullptr) throw Failure("a batch with uncommitted segments left no record");
        rank.model().commit(batches[i], *output.replay, step.accepted, rank.pools().views());
      }
      if (!rank.last_stage() || rank.place().attention != 0) return;
      if (output.logits.rows() != std::ssize(step.wanted)) throw Failure("other logit rows than were wanted");
      keep(logits_[static_cast<size_t>(rank.place().dp)], step, output.logits);
    });
  }

  static void keep(std::vector<Logits>& list, const Script::Step& step, const Matrix& logits) {
    for (size_t r = 0; r < step.wanted.size(); ++r) {
      const Script::Wanted& wanted = step.wanted[r];
      if (!wanted.kept || wanted.sequence % kChecked != 0) continue;
      const std::span<const float> row = row_of(logits, static_cast<int64_t>(r));
      list.push_back({wanted, {row.begin(), row.end()}});
    }
  }

  std::filesystem::path model_;
  layout::Instance instance_;
  int64_t steps_;
  ops::Precision precision_;
  ScriptOptions options_;
  std::vector<std::vector<Logits>> logits_;  // by group
};

class RandomSteps : public ::testing::TestWithParam<Case> {};

TEST_P(RandomSteps, GiveTheLogitsOfOneRank) {
  const RandomCheckpoint model(recipe_of(GetParam()));
  LayoutRun run(GetParam(), model.dir(), static_cast<int64_t>(GetParam().share * static_cast<double>(all_steps())));
  run.go();
  EXPECT_GT(run.compare(), 100);
}

INSTANTIATE_TEST_SUITE_P(Steps, RandomSteps, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

// The script is what the test says it is.
TEST(Script, HasEveryKindOfStep) {
  ScriptOptions options;
  options.groups = 4;
  options.vocab = 64;
  std::vector<Script> scripts;
  for (options.group = 0; options.group < options.groups; ++options.group) scripts.emplace_back(options);
  int64_t all_idle = 0, one_busy = 0, verifies = 0, rejects_all = 0, mixed = 0, ended = 0, paged = 0;
  for (int64_t s = 0; s < 1000; ++s) {
    int64_t busy = 0;
    for (Script& script : scripts) {
      const Script::Step step = script.next();
      busy += step.batch.rows() > 0 ? 1 : 0;
      verifies += step.verifies() ? 1 : 0;
      bool prefill = false;
      bool decode = false;
      for (size_t i = 0; i < step.batch.segments.size(); ++i) {
        const model::Segment& segment = step.batch.segments[i];
        (segment.rows > 5 ? prefill : decode) = true;
        rejects_all += !segment.commit && step.accepted[i] == 0 ? 1 : 0;
        paged += segment.pages.size() > 1 ? 1 : 0;
      }
      mixed += prefill && decode ? 1 : 0;
    }
    all_idle += busy == 0 ? 1 : 0;
    one_busy += busy == 1 ? 1 : 0;
  }
  for (const Script& script : scripts) ended += std::ssize(script.sequences());
  EXPECT_GT(all_idle, 20);
  EXPECT_GT(one_busy, 20);
  EXPECT_GT(verifies, 200);
  EXPECT_GT(rejects_all, 100);
  EXPECT_GT(mixed, 200);
  EXPECT_GT(ended, 200);
  EXPECT_GT(paged, 100);
}

}  // namespace
}  // namespace trireme::testing
