// The bytes that every rank counted in every step, held against the formulas of layout/traffic.h.
#include "layout/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/local.h"
#include "comm/wire.h"
#include "engine/rank.h"
#include "engine/stage_message.h"
#include "ledger/forms.h"
#include "model/trace.h"
#include "steps/script.h"
#include "steps/tiny_models.h"
#include "support/loaded_model.h"

namespace trireme::testing {
namespace {

using comm::Operation;
using layout::Dispatch;
using layout::GroupTraffic;

struct Case {
  std::string name;
  layout::Instance instance;
  bool linear = false;  // a Kimi-Linear model
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const auto& set) {
    layout::Instance instance;
    set(instance);
    all.push_back({name, instance});
  };
  add("Pp3", [](auto& i) { i.pipeline = {1, 2, 1}; });
  add("Pp4Eager", [](auto& i) {
    i.pipeline = {1, 1, 1, 1};
    i.eager_bank.enabled = true;
  });
  add("Pp3Dp2OneEagerEdge", [](auto& i) {
    i.pipeline = {2, 1, 1};
    i.dp = 2;
    i.eager_bank = {true, {1}, false};
  });
  add("Tp4", [](auto& i) { i.tp = 4; });
  add("Tp8Vocab1Ep1", [](auto& i) {
    i.tp = 8;
    i.ep = 1;
    i.vocab = 1;
  });
  add("Dcp4", [](auto& i) { i.tp = i.dcp = 4; });
  add("Tp4Dcp2", [](auto& i) {
    i.tp = 4;
    i.dcp = 2;
  });
  add("Dp4Ep4", [](auto& i) { i.dp = 4; });
  add("Dp4Ep2Vocab4", [](auto& i) {
    i.dp = 4;
    i.ep = 2;
    i.vocab = 4;
  });
  add("Dp4RowBound", [](auto& i) {
    i.dp = 4;
    i.row_bound = 150;
    i.vocab = 2;
  });
  add("Dp2Tp4RowBoundVocab8", [](auto& i) {
    i.dp = 2;
    i.tp = 4;
    i.row_bound = 40;
    i.vocab = 8;
  });
  add("Dp4ShardGather", [](auto& i) {
    i.dp = i.weight_shard = 4;
    i.move_smaller = false;
  });
  add("Dp4ShardEither", [](auto& i) { i.dp = i.weight_shard = 4; });
  add("Pp2Dp2Tp2ShardVocab4", [](auto& i) {
    i.pipeline = {1, 3};
    i.dp = i.tp = 2;
    i.weight_shard = i.vocab = 4;
  });
  add("Dp2Dcp4Ep8", [](auto& i) {
    i.dp = 2;
    i.tp = i.dcp = 4;
  });
  for (const char* name : {"Dp4ShardEither", "Pp2Dp2Tp2ShardVocab4"}) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const Case& c) { return c.name == name; });
    all.push_back({std::string("Linear") + name, same->instance, true});
  }
  return all;
}

// The batches of the groups in the first steps are prompts from their beginning, whose routing one rank can tell. The
// later ones are everything that a script does.
constexpr int64_t kPrompts = 8;
constexpr int64_t kSteps = 40;

Script::Step prompt(int64_t step, int64_t group, int64_t vocab) {
  Dice dice(99, static_cast<uint64_t>(1000 * step + group));
  Script::Step s;
  if (step == 0 || (step != 1 && dice.chance(0.25))) return s;  // nobody, everybody, then as it comes
  const int64_t rows = dice.chance(0.3) ? dice.between(126, 140) : dice.between(1, 20);
  for (int64_t r = 0; r < rows; ++r) {
    s.batch.tokens.push_back(static_cast<int32_t>(dice.between(0, vocab - 1)));
    if (dice.chance(0.2)) s.batch.logit_rows.push_back(r);
  }
  s.batch.segments.push_back({rows, 0, 0, {0, 1, 2}, true, {}});
  s.accepted = {0};
  return s;
}

// The chosen experts of every row, by MoE layer.
std::map<int64_t, std::vector<std::vector<int32_t>>> routing(const LoadedModel& alone, const model::Batch& batch) {
  std::map<int64_t, std::vector<std::vector<int32_t>>> chosen;
  if (batch.rows() == 0) return chosen;
  Pools pools = alone.pools(1, batch.rows());
  model::Trace trace;
  Sequence(alone.model, pools, 0).feed(batch.tokens, 0, &trace);
  const model::TraceTensor& ids = trace.tensors.at("router_ids");
  const auto top_k = static_cast<size_t>(alone.model.config().moe.top_k);
  const float* at = ids.values.data();
  for (const float layer : trace.tensors.at("moe_layers").values) {
    auto& rows = chosen[static_cast<int64_t>(layer)];
    for (int64_t r = 0; r < batch.rows(); ++r, at += top_k) rows.emplace_back(at, at + top_k);
  }
  EXPECT_EQ(at, ids.values.data() + ids.values.size());
  return chosen;
}

GroupTraffic difference(const GroupTraffic& after, const GroupTraffic& before) {
  GroupTraffic result = after;
  for (auto& [name, traffic] : result) {
    if (!before.contains(name)) continue;
    for (size_t i = 0; i < traffic.by.size(); ++i) {
      traffic.by[i].calls -= before.at(name).by[i].calls;
      traffic.by[i].bytes -= before.at(name).by[i].bytes;
    }
  }
  return result;
}

bool is_experts(const std::string& group) { return group.starts_with("experts"); }

class Counting {
 public:
  Counting(const Case& c, const std::filesystem::path& model, ops::Precision precision)
      : model_(model),
        instance_(resolved(c.instance, model)),
        precision_(precision),
        alone_(model, "auto", precision),
        routes_(static_cast<size_t>(kPrompts)) {
    for (int64_t s = 0; s < kPrompts; ++s) {
      for (int64_t g = 0; g < instance_.dp; ++g) {
        routes_[static_cast<size_t>(s)].push_back(routing(alone_, prompt(s, g, alone_.model.config().vocab).batch));
      }
    }
  }

  void go() {
    comm::run_local(static_cast<int>(instance_.ranks()), checked(), [this](comm::World& world) { body(world); });
  }

  // What all ranks' expert exchanges came to.
  void check_conservation() const {
    if (instance_.ep == 1) return;
    const checkpoint::ModelConfig& config = alone_.model.config();
    const int64_t row = config.moe.latent.value_or(config.hidden) * comm::element_bytes(model::wire_of(*alone_.ops));
    const int64_t counts = expert_calls_ / 3 * (instance_.ep - 1) * 16;
    ASSERT_EQ(combine_bytes_ % row, 0);
    const int64_t pairs = combine_bytes_ / row;
    const int64_t rows_bytes = expert_bytes_ - counts - 8 * pairs;
    ASSERT_EQ(rows_bytes % row, 0);
    EXPECT_GT(pairs, 0);
    EXPECT_LE(rows_bytes / row, pairs);
    EXPECT_LE(pairs, config.moe.top_k * rows_bytes / row);
    EXPECT_EQ(expert_calls_ % 3, 0);
    EXPECT_EQ(combine_calls_, expert_calls_ / 3);
  }

 private:
  void body(comm::World& world) {
    const checkpoint::ModelConfig& config = alone_.model.config();
    ScriptOptions options;
    options.seed = 5;
    options.groups = instance_.dp;
    options.vocab = config.vocab;
    options.page_tokens = ops::kPageTokens * instance_.dcp;
    engine::Rank rank(model_, instance_, rank_options(precision_, options.pages * options.page_tokens, options.slots),
                      world);
    const layout::StepTraffic formula(config, instance_, world.rank(), model::wire_of(*alone_.ops),
                                      engine::kStageHeaderBytes);
    const std::vector<layout::ShardLayer> shard = shard_layers(world.rank());
    std::vector<Script> scripts;
    for (options.group = 0; options.group < instance_.dp; ++options.group) scripts.emplace_back(options);
    GroupTraffic before = traffic_of(rank);
    for (int64_t s = 0; s < kSteps; ++s) {
      std::vector<Script::Step> steps;
      std::vector<layout::BatchRows> rows;
      for (int64_t g = 0; g < instance_.dp; ++g) {
        steps.push_back(s < kPrompts ? prompt(s, g, config.vocab) : scripts[static_cast<size_t>(g)].next());
        rows.push_back({steps.back().batch.rows(), steps.back().batch.logit_rows});
      }
      const Script::Step& mine = steps[static_cast<size_t>(rank.place().dp)];
      rank.run({&mine.batch, 1}, [&](size_t, const model::ForwardOutput& output) {
        if (mine.verifies()) rank.model().commit(mine.batch, *output.replay, mine.accepted, rank.pools().views());
      });
      const GroupTraffic after = traffic_of(rank);
      const std::vector<layout::StepRows> step = layout::step_rows(instance_, rows);
      const GroupTraffic expected =
          formula.step(step[static_cast<size_t>(rank.place().dp)], shard, dispatches(s, rank.place(), step));
      compare(difference(after, before), expected, s, world.rank());
      before = after;
    }
  }

  // One rank's routing is that of several only if their bits are equal: not with attention divided by heads or tokens.
  bool knows_routes(int64_t step) const { return step < kPrompts && instance_.tp == 1; }

  void compare(const GroupTraffic& counted, const GroupTraffic& expected, int64_t step, int rank) {
    const std::lock_guard lock(mutex_);
    std::set<std::string> names;
    for (const auto& [name, traffic] : counted) names.insert(name);
    for (const auto& [name, traffic] : expected) names.insert(name);
    for (const std::string& name : names) {
      const comm::Traffic a = counted.contains(name) ? counted.at(name) : comm::Traffic{};
      const comm::Traffic b = expected.contains(name) ? expected.at(name) : comm::Traffic{};
      if (name == "experts") {
        expert_calls_ += a[Operation::all_to_all].calls;
        expert_bytes_ += a[Operation::all_to_all].bytes;
      }
      if (name == "experts combine") {
        combine_calls_ += a[Operation::all_to_all].calls;
        combine_bytes_ += a[Operation::all_to_all].bytes;
      }
      if (is_experts(name) && !knows_routes(step)) continue;
      for (size_t i = 0; i < a.by.size(); ++i) {
        EXPECT_EQ(a.by[i].calls, b.by[i].calls) << "calls: " << where(name, i, step, rank);
        EXPECT_EQ(a.by[i].bytes, b.by[i].bytes) << "bytes: " << where(name, i, step, rank);
      }
    }
  }

  static std::string where(const std::string& group, size_t operation, int64_t step, int rank) {
    return fmt::format("rank {}, step {}, group {}, {}", rank, step, group,
                       comm::operation_name(static_cast<Operation>(operation)));
  }

  static GroupTraffic traffic_of(const engine::Rank& rank) {
    GroupTraffic all;
    for (const auto& [name, traffic] : rank.traffic()) all[name] = traffic;
    return all;
  }

  std::vector<layout::ShardLayer> shard_layers(int rank) const {
    if (instance_.weight_shard == 1) return {};
    return layout::shard_layers(alone_.model.config(), layout::share_of(instance_, rank),
                                [this](const checkpoint::CatalogueEntry& entry, int64_t rows) {
                                  const WeightView stored = alone_.checkpoint.stored(entry.name);
                                  return alone_.ops->packed_bytes(stored.format, rows, stored.cols);
                                });
  }

  // The rank of its expert group that has an expert.
  int64_t owner(int32_t expert) const {
    return expert / ((alone_.model.config().moe.experts + instance_.ep - 1) / instance_.ep);
  }

  std::vector<Dispatch> dispatches(int64_t step, const layout::Place& place,
                                   const std::vector<layout::StepRows>& rows) const {
    std::vector<Dispatch> all;
    if (!knows_routes(step) || instance_.ep == 1) return all;
    const int64_t me = place.stage_rank % instance_.ep;
    const layout::RankShare share = layout::share_of(instance_, place.rank);
    for (int64_t l = share.layer_begin; l < share.layer_end; ++l) {
      if (!alone_.model.config().is_moe(l)) continue;
      Dispatch d;
      for (int64_t peer = place.stage_rank - me; peer < place.stage_rank - me + instance_.ep; ++peer) {
        const bool mine = peer == place.stage_rank;
        if (rows[static_cast<size_t>(peer)].batch == 0) continue;  // tp = 1: stage rank and group are one number
        for (const std::vector<int32_t>& experts :
             routes_[static_cast<size_t>(step)][static_cast<size_t>(peer)].at(l)) {
          std::set<int64_t> elsewhere;
          for (const int32_t expert : experts) {
            const bool here = owner(expert) == me;
            if (mine && !here) ++d.pairs_sent;
            if (mine && !here) elsewhere.insert(owner(expert));
            if (!mine && here) ++d.pairs_received;
          }
          d.rows_sent += std::ssize(elsewhere);
        }
      }
      all.push_back(d);
    }
    return all;
  }

  std::filesystem::path model_;
  layout::Instance instance_;
  ops::Precision precision_;
  LoadedModel alone_;
  std::vector<std::vector<std::map<int64_t, std::vector<std::vector<int32_t>>>>> routes_;  // by step, group, layer
  std::mutex mutex_;
  int64_t expert_calls_ = 0, expert_bytes_ = 0, combine_calls_ = 0, combine_bytes_ = 0;
};

class Traffic : public ::testing::TestWithParam<Case> {};

TEST_P(Traffic, IsWhatTheFormulasSay) {
  ModelRecipe recipe = tiny_recipe();
  recipe.linear = GetParam().linear;
  const RandomCheckpoint model(recipe);
  for (const ops::Precision precision : {ops::Precision::f32, ops::Precision::bf16}) {
    Counting counting(GetParam(), model.dir(), precision);
    counting.go();
    counting.check_conservation();
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, Traffic, ::testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace trireme::testing
