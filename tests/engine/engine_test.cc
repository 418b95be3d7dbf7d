#include "engine/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "engine/nano.h"

namespace trireme::engine {
namespace {

std::string refusal(Engine& engine, std::vector<int32_t> prompt, SamplingParams sampling) {
  try {
    ask(engine, std::move(prompt), std::move(sampling));
  } catch (const BadInput& e) {
    return e.what();
  }
  return "";
}

// The count of pages must not overflow.
TEST(Engine, RefusesMoreTokensThanCanBeCounted) {
  EngineOptions options = nano_options();
  for (const int64_t tokens : {std::numeric_limits<int64_t>::max(), (int64_t{1} << 37) + 1, int64_t{-1}}) {
    options.max_tokens = tokens;
    EXPECT_THROW(Engine engine(options), BadInput) << tokens;
  }
}

std::string failure(const EngineOptions& options) {
  try {
    const Engine engine(options);
  } catch (const Failure& e) {
    return e.what();
  }
  return "";
}

TEST(Engine, RefusesMoreMemoryThanTheMachineHas) {
  EngineOptions options = nano_options();
  options.max_tokens = int64_t{1} << 36;
  EXPECT_NE(failure(options).find("lower max_tokens"), std::string::npos) << failure(options);
  options.max_tokens = 4096;
  options.max_running = 1'000'000'000;
  EXPECT_NE(failure(options).find("lower max_running"), std::string::npos) << failure(options);
}

TEST(Engine, RefusesWhatCanNeverRun) {
  EngineOptions options = nano_options();
  options.max_tokens = 128;
  Engine engine(options);
  EXPECT_EQ(refusal(engine, {}, greedy(1)), "prompt is empty; it must have at least one token");
  EXPECT_EQ(refusal(engine, {5, 2048}, greedy(1)), "prompt token 2048 at index 1 is outside the vocabulary of 2048");
  EXPECT_EQ(refusal(engine, {-1}, greedy(1)), "prompt token -1 at index 0 is outside the vocabulary of 2048");
  EXPECT_EQ(refusal(engine, random_prompt(1, 129), greedy(1)),
            "prompt has 129 tokens, but the MLA pages hold 128; raise max_tokens of the engine");
  EXPECT_EQ(refusal(engine, random_prompt(1, 4096), greedy(1)),
            "prompt has 4096 tokens; the model's context of 4096 takes at most 4095");
  EXPECT_NE(refusal(engine, {5}, greedy(0)).find("max_tokens is 0"), std::string::npos);
  EXPECT_EQ(engine.stats().requests, 0);
}

TEST(Engine, RefusesBadOptions) {
  const auto message = [](auto&& change) {
    EngineOptions options = nano_options();
    change(options);
    try {
      Engine engine(options);
    } catch (const BadInput& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message([](EngineOptions& o) { o.max_running = 0; }).find("max_running is 0"), std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) { o.max_running = int64_t{1} << 31; }).find("max_running is 2147483648"),
            std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) {
              o.max_running = (int64_t{1} << 31) - 1;
              o.max_tokens = 0;
            }).find("set max_tokens"),
            std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) { o.chunk_tokens = 0; }).find("chunk_tokens is 0"), std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) { o.threads = -1; }).find("threads is -1"), std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) { o.isa = "sse9"; }).find("sse9"), std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) { o.model = "/nonexistent"; }).find("/nonexistent"), std::string::npos);
  EXPECT_NE(message([](EngineOptions& o) {
              o.model = "/nonexistent";  // told before the model is looked at
              o.draft = nano_dir("k3-nano-dspark");
              o.gamma = 8;
            }).find("gamma is 8"),
            std::string::npos);
}

TEST(Engine, CancelGivesEverythingBackWithinAStep) {
  EngineOptions options = nano_options();
  options.chunk_tokens = 8;
  Engine engine(options);
  const Asked decoding = ask(engine, random_prompt(1, 4), greedy(4000));
  decoding.heard->wait_tokens(3);
  const Asked prefilling = ask(engine, random_prompt(2, 3000), greedy(10));
  while (engine.stats().running < 2) std::this_thread::yield();
  engine.cancel(prefilling.id);
  engine.cancel(decoding.id);
  engine.cancel(decoding.id);
  engine.cancel(4242);
  const int64_t steps = engine.stats().steps;
  engine.wait_idle();
  EXPECT_LE(engine.stats().steps, steps + 1);  // at most the one in flight
  expect_pools_full(engine);
  EXPECT_EQ(decoding.heard->finish(), FinishReason::cancelled);
  EXPECT_EQ(prefilling.heard->finish(), FinishReason::cancelled);
  EXPECT_TRUE(prefilling.heard->ids().empty());
  engine.cancel(decoding.id);
  EXPECT_EQ(engine.stats().cancelled, 2);
}

// Whoever sees nothing running must see every request counted, and a caller that has its whole answer must not see it
// running.
TEST(Engine, StatisticsAgreeAtEveryMoment) {
  Engine engine(nano_options());
  for (uint64_t i = 0; i < 20; ++i) {
    const Asked cut = ask(engine, random_prompt(i, 4), greedy(4000));
    cut.heard->wait_tokens(1);
    engine.cancel(cut.id);
    EngineStats stats = engine.stats();
    while (stats.running + stats.waiting > 0) stats = engine.stats();
    EXPECT_EQ(stats.cancelled, static_cast<int64_t>(i) + 1);
    const Asked whole = ask(engine, random_prompt(i, 4), greedy(1));
    whole.heard->wait_end();
    EXPECT_EQ(engine.stats().running, 0);
    EXPECT_EQ(engine.stats().finished, static_cast<int64_t>(i) + 1);
  }
}

TEST(Engine, AFullQueueIsRefusedAndRecovers) {
  EngineOptions options = nano_options();
  options.max_running = 1;
  options.max_queue = 2;
  Engine engine(options);
  std::vector<Asked> asked;
  for (int i = 0; i < 3; ++i) asked.push_back(ask(engine, {5, 6}, greedy(3000)));
  try {
    ask(engine, {5, 6}, greedy(1));
    FAIL() << "the queue took a fourth";
  } catch (const QueueFull& e) {
    EXPECT_NE(std::string(e.what()).find("max_queue is 2"), std::string::npos) << e.what();
  }
  for (const Asked& a : asked) engine.cancel(a.id);
  engine.wait_idle();
  const Asked again = ask(engine, {5, 6}, greedy(1));
  engine.wait_idle();
  EXPECT_EQ(again.heard->finish(), FinishReason::length);
}

TEST(Engine, HigherPriorityRunsFirst) {
  EngineOptions options = nano_options();
  options.max_running = 1;
  Engine engine(options);
  const Asked first = ask(engine, random_prompt(1, 5), greedy(60));
  first.heard->wait_tokens(1);
  std::mutex mutex;
  std::vector<int> order;
  for (const int priority : {0, 5, 1}) {
    engine.submit({{5, 6, 7}, greedy(2), priority, [&, priority](const Output& o) {
                     const std::lock_guard lock(mutex);
                     if (o.finish) order.push_back(priority);
                   }});
  }
  engine.wait_idle();
  EXPECT_EQ(order, (std::vector<int>{5, 1, 0}));
}

TEST(Engine, AnswerThatOutgrowsThePoolEndsWithTheReason) {
  EngineOptions options = nano_options();
  options.max_tokens = 128;
  Engine engine(options);
  const Asked a = ask(engine, random_prompt(1, 100), greedy(1000));
  engine.wait_idle();
  EXPECT_EQ(a.heard->finish(), FinishReason::error);
  EXPECT_NE(a.heard->error().find("raise max_tokens"), std::string::npos) << a.heard->error();
  EXPECT_EQ(a.heard->ids().size(), 29U);  // 128 known tokens have their state, so one more was drawn
  expect_pools_full(engine);
}

// k3-nano that says its context is 256, so that the end of the context is near.
std::filesystem::path short_nano() {
  const auto dir = std::filesystem::path(::testing::TempDir()) / fmt::format("k3-nano-256-{}", getpid());
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  for (const auto& file : std::filesystem::directory_iterator(nano_dir())) {
    if (file.path().filename() == "config.json") continue;
    std::filesystem::create_symlink(file.path(), dir / file.path().filename());
  }
  std::ifstream in(nano_dir() / "config.json");
  auto config = nlohmann::json::parse(in);
  config["text_config"]["max_position_embeddings"] = 256;
  std::ofstream(dir / "config.json") << config.dump(1);
  return dir;
}

TEST(Engine, ContextCutsTheAnswer) {
  EngineOptions options = nano_options();
  options.model = short_nano();
  Engine engine(options);
  const Asked a = ask(engine, random_prompt(3, 250), greedy(100));
  engine.wait_idle();
  std::filesystem::remove_all(options.model);
  EXPECT_EQ(a.heard->finish(), FinishReason::length) << a.heard->error();
  EXPECT_EQ(a.heard->ids().size(), 6U);
}

TEST(Engine, StopIdsEndTheAnswerUnlessMinTokensForbids) {
  Engine engine(nano_options());
  const auto prompt = random_prompt(1, 20);
  const Asked plain = ask(engine, prompt, greedy(12));
  engine.wait_idle();
  const auto words = plain.heard->ids();
  SamplingParams stopping = greedy(12);
  stopping.stop_ids = {words[3]};
  const auto first = static_cast<size_t>(std::find(words.begin(), words.end(), words[3]) - words.begin());
  const Asked stopped = ask(engine, prompt, stopping);
  stopping.min_tokens = 8;
  const Asked held = ask(engine, prompt, stopping);
  engine.wait_idle();
  EXPECT_EQ(stopped.heard->finish(), FinishReason::stop);
  EXPECT_EQ(stopped.heard->ids(),
            std::vector<int32_t>(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(first) + 1));
  const auto longer = held.heard->ids();
  ASSERT_GE(longer.size(), 8U);
  EXPECT_EQ(std::count(longer.begin(), longer.begin() + 7, words[3]), 0);
}

TEST(Engine, SeedsRepeatAndDiffer) {
  Engine engine(nano_options());
  SamplingParams sampling = greedy(20);
  sampling.temperature = 1.5F;
  sampling.seed = 11;
  const auto prompt = random_prompt(4, 30);
  const Asked a = ask(engine, prompt, sampling);
  engine.wait_idle();
  const Asked b = ask(engine, prompt, sampling);
  sampling.seed = 12;
  const Asked c = ask(engine, prompt, sampling);
  engine.wait_idle();
  EXPECT_EQ(a.heard->ids(), b.heard->ids());  // b shared its steps with c
  EXPECT_NE(a.heard->ids(), c.heard->ids());
}

TEST(Engine, LogprobsComeWithTheTokens) {
  Engine engine(nano_options());
  SamplingParams sampling = greedy(5);
  sampling.top_logprobs = 2048;  // all of the vocabulary: their probabilities must add up to 1
  const Asked a = ask(engine, random_prompt(5, 10), sampling);
  engine.wait_idle();
  for (const OutputToken& t : a.heard->tokens()) {
    ASSERT_EQ(t.top.size(), 2048U);
    EXPECT_EQ(t.top[0].token, t.token);  // greedy
    EXPECT_EQ(t.top[0].logprob, t.logprob);
    double sum = 0;
    for (size_t i = 0; i < t.top.size(); ++i) {
      sum += std::exp(static_cast<double>(t.top[i].logprob));
      ASSERT_LE(t.top[i].logprob, t.top[i > 0 ? i - 1 : 0].logprob);
    }
    EXPECT_NEAR(sum, 1, 1e-4);
  }
}

TEST(Engine, AThrowingListenerHarmsNobody) {
  Engine engine(nano_options());
  engine.submit({{5, 6}, greedy(5), 0, [](const Output&) { throw std::runtime_error("listener"); }});
  const Asked other = ask(engine, {5, 6}, greedy(5));
  engine.wait_idle();
  EXPECT_EQ(other.heard->finish(), FinishReason::length);
  EXPECT_EQ(engine.stats().finished, 2);
  expect_pools_full(engine);
}

TEST(Engine, EndingTheEngineEndsItsRequests) {
  Asked running, waiting;
  {
    EngineOptions options = nano_options();
    options.max_running = 1;
    Engine engine(options);
    running = ask(engine, {5, 6}, greedy(4000));
    waiting = ask(engine, {5, 6}, greedy(4000));
    running.heard->wait_tokens(2);
  }
  EXPECT_EQ(running.heard->finish(), FinishReason::cancelled);
  EXPECT_EQ(waiting.heard->finish(), FinishReason::cancelled);
}

TEST(Engine, ManyCallersManyCancels) {
  EngineOptions options = nano_options();
  options.max_running = 4;
  options.max_tokens = 1024;
  options.chunk_tokens = 32;
  Engine engine(options);
  std::mutex mutex;
  std::vector<Asked> asked;
  std::vector<std::thread> callers;
  for (uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (uint64_t i = 0; i < 8; ++i) {
        const auto length = static_cast<int64_t>(1 + uniform_at(caller, i, 1) * 90);
        const Asked a = ask(engine, random_prompt(caller * 100 + i, length),
                            greedy(1 + static_cast<int64_t>(uniform_at(caller, i, 2) * 30)));
        if (i % 3 == 0) {
          a.heard->wait_tokens(static_cast<size_t>(uniform_at(caller, i, 3) * 4));
          engine.cancel(a.id);
        }
        const std::lock_guard lock(mutex);
        asked.push_back(a);
      }
    });
  }
  for (auto& c : callers) c.join();
  engine.wait_idle();
  for (const Asked& a : asked) EXPECT_TRUE(a.heard->finish().has_value());
  EXPECT_EQ(engine.stats().requests, 32);
  expect_pools_full(engine);
}

TEST(Engine, TakesFromTheLedgerWhatWasPlanned) {
  EngineOptions options = nano_options();
  options.draft = nano_dir("k3-nano-dspark");
  Engine engine(options);
  for (const ledger::Line& line : engine.account().plan().lines) {
    EXPECT_EQ(engine.account().taken(line.name), line.bytes) << line.name;
  }
}

}  // namespace
}  // namespace trireme::engine
