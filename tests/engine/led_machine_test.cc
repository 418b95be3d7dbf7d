// An engine whose model is divided over ranks says what an engine alone says.
#include "engine/led_machine.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "comm/local.h"
#include "engine/nano.h"

namespace trireme::engine {
namespace {

layout::Instance instance_of(void (*change)(layout::Instance&)) {
  layout::Instance instance;
  change(instance);
  return layout::resolve(instance, checkpoint::read_config(nano_dir()));
}

// Runs `work` on an engine that rank 0 of the instance leads.
void with_engine(const layout::Instance& instance, const std::function<void(Engine&)>& work) {
  RankOptions options;
  options.precision = ops::Precision::f32;
  options.tokens = 2048;
  options.slots = 3;
  comm::LocalOptions local;
  local.checked = true;
  comm::run_local(static_cast<int>(instance.ranks()), local, [&](comm::World& world) {
    Rank rank(nano_dir(), instance, options, world);
    if (world.rank() != 0) return follow(rank);
    EngineOptions engine_options;
    engine_options.chunk_tokens = 48;
    Engine engine(engine_options, std::make_unique<LedMachine>(rank));
    work(engine);
  });
}

std::vector<int32_t> prompt_of(size_t i) { return random_prompt(i, 20 + static_cast<int64_t>(i) * 23); }

// Greedy answers of an engine alone.
const std::vector<std::vector<int32_t>>& alone() {
  static const std::vector<std::vector<int32_t>> kAnswers = [] {
    EngineOptions options = nano_options();
    options.precision = ops::Precision::f32;
    Engine engine(options);
    std::vector<std::vector<int32_t>> answers;
    for (size_t i = 0; i < 6; ++i) {
      const Asked asked = ask(engine, prompt_of(i), greedy(12));
      asked.heard->wait_end();
      answers.push_back(asked.heard->ids());
    }
    return answers;
  }();
  return kAnswers;
}

// More requests than slots, all at once; one of them is cancelled.
void answers_as_alone(Engine& engine) {
  std::vector<Asked> asked;
  for (size_t i = 0; i < 6; ++i) asked.push_back(ask(engine, prompt_of(i), greedy(12)));
  const SamplingParams endless = greedy(1000);
  const Asked cut = ask(engine, prompt_of(0), endless);
  cut.heard->wait_tokens(3);
  engine.cancel(cut.id);
  for (size_t i = 0; i < 6; ++i) {
    asked[i].heard->wait_end();
    EXPECT_EQ(asked[i].heard->ids(), alone()[i]) << "request " << i;
  }
  cut.heard->wait_end();
  EXPECT_EQ(cut.heard->finish(), FinishReason::cancelled);
  engine.wait_idle();
  expect_pools_full(engine);
}

TEST(LedMachine, PipelineAnswersAsAlone) {
  with_engine(instance_of([](layout::Instance& i) { i.pipeline = {4, 5, 4}; }), answers_as_alone);
}

TEST(LedMachine, DataParallelGroupsShareTheLoad) {
  const auto instance = instance_of([](layout::Instance& i) {
    i.dp = 4;
    i.weight_shard = 2;
    i.warmup = {1, 100};
  });
  with_engine(instance, [](Engine& engine) {
    EXPECT_EQ(engine.stats().slots_total, 4 * 3);
    answers_as_alone(engine);
  });
}

TEST(LedMachine, ContextParallelAnswersAsAlone) {
  const auto instance = instance_of([](layout::Instance& i) {
    i.dp = 2;
    i.tp = i.dcp = 4;
  });
  with_engine(instance, [](Engine& engine) {
    EXPECT_EQ(engine.stats().page_tokens, 256);
    answers_as_alone(engine);
  });
}

TEST(LedMachine, AFailedStepEndsRequestsEngineAndRanks) {
  const layout::Instance instance = instance_of([](layout::Instance& i) {
    i.dp = 2;
    i.row_bound = 8;  // less than the engine's steps need
  });
  EXPECT_THROW(with_engine(instance,
                           [](Engine& engine) {
                             const Asked asked = ask(engine, random_prompt(1, 40), greedy(4));
                             asked.heard->wait_end();
                             EXPECT_EQ(asked.heard->finish(), FinishReason::error);
                             EXPECT_NE(asked.heard->error().find("row_bound"), std::string::npos)
                                 << asked.heard->error();
                             while (engine.stats().dead.empty()) std::this_thread::yield();
                             EXPECT_THROW(ask(engine, {1, 2}, greedy(1)), Failure);
                           }),
               std::exception);
}

TEST(Batches, TravelAsNumbers) {
  model::Batch first;
  first.tokens = {5, 6, 7};
  first.segments = {{2, 0, 1, {4, 3}, true, {}}, {1, 70, 2, {0}, true, {}}};
  first.logit_rows = {1, 2};
  const std::vector<model::Batch> batches{first, {}};
  const std::vector<int64_t> numbers = encode_batches(batches);
  const std::vector<model::Batch> back = decode_batches(numbers);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].tokens, first.tokens);
  EXPECT_EQ(back[0].logit_rows, first.logit_rows);
  ASSERT_EQ(back[0].segments.size(), 2U);
  EXPECT_EQ(back[0].segments[0].pages, first.segments[0].pages);
  EXPECT_EQ(back[0].segments[1].position, 70);
  EXPECT_EQ(back[0].segments[1].slot, 2);
  EXPECT_TRUE(back[1].tokens.empty());
  EXPECT_EQ(encode_batches(back), numbers);
  // Every cut of the numbers, and numbers too many.
  for (size_t n = 0; n < numbers.size(); ++n) {
    EXPECT_THROW(decode_batches(std::span(numbers).first(n)), Failure) << n;
  }
  std::vector<int64_t> more = numbers;
  more.push_back(1);
  EXPECT_THROW(decode_batches(more), Failure);
  more = {int64_t{1} << 60};
  EXPECT_THROW(decode_batches(more), Failure);
}

}  // namespace
}  // namespace trireme::engine
