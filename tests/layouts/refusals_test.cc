// Ranks that cannot work together say so, all of them, and none waits for ever.
#include <array>
#include <mutex>
#include <string>

#include "layouts/layout_run.h"

namespace trireme::testing {
namespace {

using layout::Instance;

// What every rank's constructor said; empty: nothing. `change` makes one rank different.
struct Different {
  Instance instance;
  engine::RankOptions options;
  std::string model = "plain";
};

std::vector<std::string> failures(const Instance& instance, int64_t odd_one,
                                  const std::function<void(Different&)>& change) {
  std::vector<std::string> said(static_cast<size_t>(instance.ranks()));
  on_ranks(instance, [&](comm::World& world) {
    Different mine;
    mine.instance = instance;
    mine.options.tokens = 64;
    if (world.rank() == odd_one) change(mine);
    try {
      const engine::Rank rank(model_dir(mine.model), mine.instance, mine.options, world);
    } catch (const Failure& failure) {
      said[static_cast<size_t>(world.rank())] = failure.what();
    }
  });
  return said;
}

void expect_all_say(const std::vector<std::string>& said, std::initializer_list<const char*> words) {
  for (size_t rank = 0; rank < said.size(); ++rank) {
    for (const char* word : words) {
      EXPECT_NE(said[rank].find(word), std::string::npos) << "rank " << rank << " says \"" << said[rank] << "\"";
    }
  }
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(LayoutRefusals, WrongNumberOfRanks) {
  const std::filesystem::path dir = model_dir("plain");
  const Instance instance = instance_of("attention = { dp = 4 }", dir);
  for (const int ranks : {1, 3, 5}) {
    const std::string said = failure_of([&] {
      comm::run_local(ranks, {}, [&](comm::World& world) { const engine::Rank rank(dir, instance, {}, world); });
    });
    EXPECT_NE(said.find("4 ranks"), std::string::npos) << said;
    EXPECT_NE(said.find(std::to_string(ranks)), std::string::npos) << said;
  }
}

TEST(LayoutRefusals, EveryRankNamesTheOneThatDiffers) {
  model_dir("plain");
  const Instance instance = instance_of("attention = { dp = 4 }\nvocab = 2", model_dir("plain"));
  const auto with_instance = [&](const std::string& toml) {
    return failures(instance, 2, [&](Different& d) { d.instance = instance_of(toml, model_dir("plain")); });
  };
  expect_all_say(with_instance("attention = { dp = 4 }\nvocab = 4"), {"rank 2", "vocab 2", "vocab 4"});
  expect_all_say(with_instance("attention = { dp = 2, tp = 2 }\nvocab = 2"), {"rank 2", "dp 4", "dp 2"});
  expect_all_say(with_instance("attention = { dp = 4 }\nvocab = 2\nexperts = { ep = 2 }"), {"rank 2", "ep 4", "ep 2"});
  expect_all_say(with_instance("attention = { dp = 4 }\nvocab = 2\nrow_bound = 7"), {"rank 2", "row_bound", "7"});
  expect_all_say(with_instance("attention = { dp = 4 }\nvocab = 2\nweight_shard = 4"),
                 {"rank 2", "weight_shard 1", "weight_shard 4"});
  expect_all_say(with_instance("attention = { dp = 2 }\nvocab = 2\npipeline = [2, 3]"), {"rank 2", "5", "2 3"});
}

TEST(LayoutRefusals, OptionsAndModelsAreComparedToo) {
  model_dir("plain");
  model_dir("odd");
  const Instance instance = instance_of("attention = { dp = 3 }\nexperts = { ep = 1 }", model_dir("plain"));
  expect_all_say(failures(instance, 1, [](Different& d) { d.options.tokens = 65; }),
                 {"rank 1", "tokens 64", "tokens 65"});
  expect_all_say(failures(instance, 2, [](Different& d) { d.options.slots = 9; }), {"rank 2", "slots 1", "slots 9"});
  expect_all_say(failures(instance, 1, [](Different& d) { d.options.precision = ops::Precision::f32; }),
                 {"rank 1", "bf16", "f32"});
  expect_all_say(failures(instance, 2, [](Different& d) { d.model = "odd"; }), {"rank 2", "hidden 64", "hidden 60"});
}

// What decides how prompts are cut decides how many steps a rank takes.
TEST(LayoutRefusals, ChunkSettingsAreComparedToo) {
  model_dir("plain");
  const Instance instance = instance_of("pipeline = [2, 3]", model_dir("plain"));
  expect_all_say(failures(instance, 1, [](Different& d) { d.instance.chunk_tokens = 77; }), {"rank 1", "8192", "77"});
  expect_all_say(failures(instance, 1, [](Different& d) { d.instance.dynamic_chunking = true; }),
                 {"rank 1", "dynamic_chunking"});
}

// Shares are rounded up, so the last rank may have none: refused before anything starts.
TEST(LayoutRefusals, RanksWithoutAShare) {
  const std::filesystem::path dir = model_dir("scarce");
  const auto said = [&](const std::string& toml) { return failure_of([&] { instance_of(toml, dir); }); };
  // By the words that matter: the setting, whose share it is, what would work.
  const auto expect_words = [&](const std::string& toml, std::initializer_list<const char*> words) {
    const std::string text = said(toml);
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
  };
  expect_words("attention = { tp = 8 }", {"attention.tp = 8", "without", "13", "1, 2 or 4 would work"});
  expect_words("attention = { dp = 8 }\nvocab = 8", {"vocab = 8", "without", "19", "1, 2 or 4 would work"});
  expect_words("attention = { dp = 8 }\nweight_shard = 8",
               {"weight_shard = 8", "without", "routed_expert_down_proj", "1, 2 or 4 would work"});
}

// A rank whose model is not there ends the others; the error is its own.
TEST(LayoutRefusals, ARankWithoutItsModelEndsAll) {
  const std::filesystem::path dir = model_dir("plain");
  const Instance instance = instance_of("attention = { dp = 4 }", dir);
  const std::string said = failure_of([&] {
    on_ranks(instance, [&](comm::World& world) {
      const engine::Rank rank(world.rank() == 3 ? dir / "nowhere" : dir, instance, {}, world);
    });
  });
  EXPECT_NE(said.find("rank 3"), std::string::npos) << said;
  EXPECT_NE(said.find("nowhere"), std::string::npos) << said;
}

// What is said when the second group's second step has `rows` rows; empty: nothing.
std::string step_of(const std::string& toml, int64_t rows) {
  const std::filesystem::path dir = model_dir("deep");
  const Instance instance = instance_of(toml, dir);
  try {
    on_ranks(instance, [&](comm::World& world) {
      engine::RankOptions options;
      options.precision = ops::Precision::f32;
      options.tokens = 128;
      engine::Rank rank(dir, instance, options, world);
      std::array<model::Batch, 2> batches;
      for (size_t i = 0; i < batches.size(); ++i) {
        const int64_t count = rank.place().dp == 1 && i == 1 ? rows : 3;
        batches[i].tokens.assign(static_cast<size_t>(count), 7);
        batches[i].segments.push_back({count, static_cast<int64_t>(i) * 3, 0, {0, 1}, true, {}});
        batches[i].logit_rows = {count - 1};
      }
      rank.run(batches, [](size_t, model::ForwardOutput&) {});
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(LayoutRefusals, MoreRowsThanTheBound) {
  for (const std::string layout : {"", "pipeline = [4, 4, 10]\nweight_shard = 2\n"}) {
    const std::string said = step_of(layout + "attention = { dp = 2 }\nrow_bound = 8", 9);
    EXPECT_NE(said.find("9 rows a rank, row_bound allows 8"), std::string::npos) << said;
  }
}

// row_bound counts a rank's own rows, so a batch of twice as many is taken where two ranks divide it.
TEST(LayoutRefusals, TheBoundIsOfARanksOwnRows) {
  const std::string layout = "attention = { dp = 2, tp = 2 }\nrow_bound = 8\nexperts = { ep = 4 }";
  EXPECT_EQ(step_of(layout, 16), "");
  EXPECT_NE(step_of(layout, 17).find("9 rows a rank, row_bound allows 8"), std::string::npos);
}

}  // namespace
}  // namespace trireme::testing
