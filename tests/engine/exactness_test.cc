// The words do not depend on how the engine gets to them: chunks, batches, order of arrival, retraction, speculation,
// threads.
#include <gtest/gtest.h>

#include "engine/nano.h"

namespace trireme::engine {
namespace {

constexpr int64_t kAnswer = 16;

struct Case {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
};

// Prompts around page and chunk edges; every second is sampled, with penalties.
std::vector<Case> cases() {
  std::vector<Case> out;
  const int64_t lengths[] = {1, 7, 63, 64, 65, 130};
  for (const int64_t length : lengths) {
    SamplingParams sampling = greedy(kAnswer);
    if (out.size() % 2 == 1) {
      sampling.temperature = 0.9F;
      sampling.top_p = 0.95F;
      sampling.top_k = 40;
      sampling.presence_penalty = 0.5F;
      sampling.seed = 1000 + static_cast<uint64_t>(length);
    }
    out.push_back({random_prompt(static_cast<uint64_t>(length), length), sampling});
  }
  return out;
}

using Words = std::vector<std::vector<int32_t>>;

// All at once.
Words together(const EngineOptions& options, bool backwards = false, EngineStats* stats = nullptr) {
  Engine engine(options);
  const auto all = cases();
  std::vector<Asked> asked(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t k = backwards ? all.size() - 1 - i : i;
    asked[k] = ask(engine, all[k].prompt, all[k].sampling);
  }
  engine.wait_idle();
  expect_pools_full(engine);
  if (stats != nullptr) *stats = engine.stats();
  Words words;
  for (auto& a : asked) {
    EXPECT_EQ(a.heard->finish(), FinishReason::length) << a.heard->error();
    words.push_back(a.heard->ids());
  }
  return words;
}

// One after the other.
const Words& alone() {
  static const Words words = [] {
    Engine engine(nano_options());
    Words out;
    for (const Case& c : cases()) {
      const Asked a = ask(engine, c.prompt, c.sampling);
      engine.wait_idle();
      out.push_back(a.heard->ids());
    }
    return out;
  }();
  return words;
}

class ChunkSizes : public ::testing::TestWithParam<int64_t> {};

TEST_P(ChunkSizes, GiveTheSameWords) {
  EngineOptions options = nano_options();
  options.chunk_tokens = GetParam();
  EXPECT_EQ(together(options), alone());
}

INSTANTIATE_TEST_SUITE_P(Exactness, ChunkSizes, ::testing::Values(1, 7, 64, 65, 4096));

TEST(Exactness, OrderOfArrivalDoesNotMatter) { EXPECT_EQ(together(nano_options(), true), alone()); }

TEST(Exactness, ThreadsDoNotMatter) {
  EngineOptions options = nano_options();
  options.threads = 3;
  EXPECT_EQ(together(options), alone());
}

TEST(Exactness, FewSlotsDoNotMatter) {
  EngineOptions options = nano_options();
  options.max_running = 2;
  options.chunk_tokens = 50;
  EXPECT_EQ(together(options), alone());
}

TEST(Exactness, RetractionDoesNotChangeTheWords) {
  // Two that grow over a page edge with one page to share: the younger is retracted and later runs its own words again.
  const auto first = random_prompt(1, 60), second = random_prompt(2, 60);
  SamplingParams sampled = greedy(80);
  sampled.temperature = 1;
  sampled.seed = 5;
  Words ample, tight;
  for (Words* words : {&ample, &tight}) {
    EngineOptions options = nano_options();
    options.max_tokens = words == &tight ? 5 * 64 : 4096;
    Engine engine(options);
    const Asked a = ask(engine, first, greedy(80));
    const Asked b = ask(engine, second, sampled);
    engine.wait_idle();
    expect_pools_full(engine);
    EXPECT_EQ(engine.stats().retractions > 0, words == &tight);
    EXPECT_EQ(engine.stats().finished, 2);
    *words = {a.heard->ids(), b.heard->ids()};
  }
  EXPECT_EQ(ample, tight);
}

class Drafts : public ::testing::TestWithParam<std::tuple<const char*, int64_t>> {};

TEST_P(Drafts, DoNotChangeTheWords) {
  EngineOptions options = nano_options();
  options.draft = nano_dir(std::get<0>(GetParam()));
  options.gamma = std::get<1>(GetParam());
  EngineStats stats;
  EXPECT_EQ(together(options, false, &stats), alone());
  EXPECT_GT(stats.draft_rounds, 0);
  EXPECT_GT(stats.draft_emitted, stats.draft_rounds) << "not one draft was accepted";
}

INSTANTIATE_TEST_SUITE_P(Exactness, Drafts,
                         ::testing::Combine(::testing::Values("k3-nano-dspark", "k3-nano-dflash"),
                                            ::testing::Values(1, 4, 7)));

TEST(Exactness, DraftsSurviveRetraction) {
  EngineOptions options = nano_options();
  const auto run = [&](bool tight) {
    options.max_tokens = tight ? 5 * 64 : 4096;
    Engine engine(options);
    const Asked a = ask(engine, random_prompt(1, 60), greedy(180));
    const Asked b = ask(engine, random_prompt(2, 60), greedy(180));
    engine.wait_idle();
    EXPECT_EQ(engine.stats().retractions > 0, tight);
    return Words{a.heard->ids(), b.heard->ids()};
  };
  const Words plain = run(false);
  options.draft = nano_dir("k3-nano-dflash");
  EXPECT_EQ(run(true), plain);
}

}  // namespace
}  // namespace trireme::engine
