#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::engine {
namespace {

// One prompt of `tokens` tokens whose values do not matter.
std::vector<int32_t> prompt(int64_t tokens) { return std::vector<int32_t>(static_cast<size_t>(tokens), 7); }

SamplingParams up_to(int64_t max_tokens) {
  SamplingParams p;
  p.max_tokens = max_tokens;
  return p;
}

struct Rig {
  cache::IdPool pages, slots;
  Scheduler scheduler;
  Rig(int64_t page_count, int64_t slot_count, const SchedulerLimits& limits = {})
      : pages("page", page_count), slots("slot", slot_count), scheduler(limits, pages, slots) {}

  // Runs one step in which every sampling entry yields token 1; a request ends by length.
  StepPlan step() {
    StepPlan plan = scheduler.plan();
    std::vector<EntryResult> results;
    for (const PlanEntry& e : plan.entries) {
      EntryResult r;
      if (e.samples) {
        r.tokens = {1};
        const Sequence& s = scheduler.sequence(e.id);
        if (s.produced() + 1 >= s.sampling.max_tokens) r.finish = FinishReason::length;
      }
      results.push_back(r);
    }
    scheduler.complete(plan, results);
    return plan;
  }
  std::vector<RequestId> ids(const StepPlan& plan) const {
    std::vector<RequestId> out;
    for (const auto& e : plan.entries) out.push_back(e.id);
    return out;
  }
};

TEST(Scheduler, CutsAPromptIntoChunksAndDecodesBesideIt) {
  Rig rig(100, 4, {.chunk_tokens = 10});
  ASSERT_TRUE(rig.scheduler.submit(1, prompt(4), up_to(5), 0));
  ASSERT_TRUE(rig.scheduler.submit(2, prompt(13), up_to(5), 0));
  StepPlan plan = rig.step();  // 4 + 6 prompt tokens
  ASSERT_EQ(rig.ids(plan), (std::vector<RequestId>{1, 2}));
  EXPECT_TRUE(plan.entries[0].samples);
  EXPECT_EQ(plan.entries[1].tokens.size(), 6U);
  EXPECT_FALSE(plan.entries[1].samples);
  plan = rig.step();  // a decode row of 1, then the other 7 of 2
  ASSERT_EQ(rig.ids(plan), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(plan.entries[0].position, 4);
  EXPECT_EQ(plan.entries[1].position, 6);
  EXPECT_EQ(plan.entries[1].tokens.size(), 7U);
  EXPECT_TRUE(plan.entries[1].samples);
}

TEST(Scheduler, TheCutRequestGoesOnBeforeAHigherPriority) {
  Rig rig(100, 4, {.chunk_tokens = 10});
  rig.scheduler.submit(1, prompt(25), up_to(1), 0);
  rig.step();
  rig.scheduler.submit(2, prompt(5), up_to(1), 9);
  EXPECT_EQ(rig.ids(rig.step()), std::vector<RequestId>{1});
  const StepPlan third = rig.step();  // the last 5 of 1, then 2 with what is left of the chunk
  ASSERT_EQ(third.entries.size(), 2U);
  EXPECT_EQ(third.entries[0].id + third.entries[1].id, 3U);
}

TEST(Scheduler, HigherPriorityIsAdmittedFirstThenArrival) {
  Rig rig(100, 1);
  rig.scheduler.submit(1, prompt(5), up_to(1), 0);
  rig.scheduler.submit(2, prompt(5), up_to(1), 3);
  rig.scheduler.submit(3, prompt(5), up_to(1), 3);
  rig.scheduler.submit(4, prompt(5), up_to(1), -1);
  std::vector<RequestId> order;
  while (!rig.scheduler.idle()) order.push_back(rig.step().entries.at(0).id);
  EXPECT_EQ(order, (std::vector<RequestId>{2, 3, 1, 4}));
}

TEST(Scheduler, QueueLimitCountsWhatNoFreeSlotCanTake) {
  Rig rig(100, 1, {.max_queue = 2});
  EXPECT_TRUE(rig.scheduler.submit(1, prompt(5), up_to(9), 0));
  EXPECT_TRUE(rig.scheduler.submit(2, prompt(5), up_to(9), 0));
  EXPECT_TRUE(rig.scheduler.submit(3, prompt(5), up_to(9), 0));
  EXPECT_FALSE(rig.scheduler.submit(4, prompt(5), up_to(9), 0));
  rig.step();
  EXPECT_FALSE(rig.scheduler.submit(4, prompt(5), up_to(9), 0));
  rig.scheduler.cancel(2);
  EXPECT_TRUE(rig.scheduler.submit(4, prompt(5), up_to(9), 0));
}

TEST(Scheduler, CancelIsIdempotentInEveryPhase) {
  Rig rig(100, 2, {.chunk_tokens = 10});
  rig.scheduler.submit(1, prompt(5), up_to(9), 0);
  rig.scheduler.submit(2, prompt(20), up_to(9), 0);
  rig.scheduler.submit(3, prompt(20), up_to(9), 0);
  rig.step();
  EXPECT_EQ(rig.scheduler.take_events().size(), 1U);  // 1's first token
  for (int i = 0; i < 2; ++i) {
    for (const RequestId id : {1, 2, 3, 99}) rig.scheduler.cancel(id);  // decoding, cut, waiting, unknown
  }
  const auto events = rig.scheduler.take_events();
  ASSERT_EQ(events.size(), 3U);
  for (const auto& e : events) EXPECT_EQ(e.finish, FinishReason::cancelled);
  EXPECT_TRUE(rig.pages.full());
  EXPECT_TRUE(rig.slots.full());
  EXPECT_TRUE(rig.scheduler.idle());
}

TEST(Scheduler, CancelDuringAStepWaitsForItsResults) {
  Rig rig(100, 2);
  rig.scheduler.submit(1, prompt(5), up_to(9), 0);
  const StepPlan plan = rig.scheduler.plan();
  rig.scheduler.cancel(1);
  EXPECT_FALSE(rig.pages.full());
  EXPECT_TRUE(rig.scheduler.take_events().empty());
  rig.scheduler.complete(plan, std::vector<EntryResult>{{{1}, FinishReason::stop, {}}});
  const auto events = rig.scheduler.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].finish, FinishReason::cancelled);
  EXPECT_EQ(events[0].tokens, 0);
  EXPECT_TRUE(rig.pages.full());
}

TEST(Scheduler, RetractsTheLeastAdvancedAndKeepsItsOutput) {
  // 5 pages: 1 and 2 hold two each after 64 tokens; the third page of 1 takes the last one, that of 2 has none.
  Rig rig(5, 2);
  rig.scheduler.submit(1, prompt(60), up_to(200), 0);
  rig.step();
  rig.scheduler.submit(2, prompt(60), up_to(200), 0);
  while (rig.scheduler.retractions() == 0) ASSERT_FALSE(rig.step().empty());
  EXPECT_EQ(rig.scheduler.waiting(), 1);
  const Sequence& s = rig.scheduler.sequence(2);
  EXPECT_EQ(s.phase, Sequence::Phase::waiting);
  EXPECT_GT(s.produced(), 60);
  EXPECT_EQ(s.computed, 0);
  const int64_t kept = s.size();
  StepPlan plan;
  do {
    plan = rig.step();
    ASSERT_FALSE(plan.empty());
  } while (plan.entries[0].id != 2);
  EXPECT_EQ(plan.entries[0].position, 0);
  EXPECT_EQ(static_cast<int64_t>(plan.entries[0].tokens.size()), kept);  // prompt and output run again
  while (!rig.scheduler.idle()) rig.step();
  EXPECT_TRUE(rig.pages.full());
}

TEST(Scheduler, LowPriorityIsRetractedThoughItIsFurther) {
  Rig rig(5, 2);
  rig.scheduler.submit(1, prompt(60), up_to(200), 0);
  for (int i = 0; i < 3; ++i) rig.step();
  rig.scheduler.submit(2, prompt(60), up_to(200), 1);
  while (rig.scheduler.retractions() == 0) rig.step();
  EXPECT_EQ(rig.scheduler.sequence(1).phase, Sequence::Phase::waiting);
  EXPECT_EQ(rig.scheduler.sequence(2).phase, Sequence::Phase::decode);
}

TEST(Scheduler, OneThatCannotFitAloneEndsWithTheReason) {
  Rig rig(2, 2);
  rig.scheduler.submit(1, prompt(100), up_to(1000), 0);
  std::vector<SchedulerEvent> last;
  while (!rig.scheduler.idle()) {
    rig.step();
    last = rig.scheduler.take_events();
  }
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0].finish, FinishReason::error);
  EXPECT_NE(last[0].error.find("hold 128 tokens"), std::string::npos) << last[0].error;
  EXPECT_NE(last[0].error.find("raise max_tokens"), std::string::npos);
  EXPECT_EQ(rig.scheduler.retractions(), 0);
  EXPECT_TRUE(rig.pages.full());
}

TEST(Scheduler, APromptThatFillsThePoolRuns) {
  Rig rig(2, 2);
  rig.scheduler.submit(1, prompt(128), up_to(1), 0);
  EXPECT_EQ(rig.step().entries.size(), 1U);
  EXPECT_EQ(rig.scheduler.take_events().at(0).finish, FinishReason::length);
}

TEST(Scheduler, DraftsStayInsideTheAnswerAndTakeOnlySparePages) {
  Rig rig(3, 2, {.draft_tokens = 4});
  rig.scheduler.submit(1, prompt(62), up_to(4), 0);
  rig.step();
  StepPlan plan = rig.scheduler.plan();
  EXPECT_EQ(plan.entries[0].drafts, 2);  // one token is out, the row itself yields one, two are left
  EXPECT_EQ(plan.entries[0].pages.size(), 2U);
  rig.scheduler.complete(plan, std::vector<EntryResult>{{{1, 1}, std::nullopt, {}}});
  EXPECT_EQ(rig.scheduler.sequence(1).computed, 64);
  rig.scheduler.cancel(1);

  Rig tight(1, 1, {.draft_tokens = 4});
  tight.scheduler.submit(1, prompt(62), up_to(50), 0);
  tight.step();
  EXPECT_EQ(tight.scheduler.plan().entries[0].drafts, 0);  // rows 62..66 would need a second page
}

// A draft that crosses into a new page and is refused must not keep the page from others.
TEST(Scheduler, RefusedDraftsGiveTheirPagesBack) {
  Rig rig(3, 2, {.draft_tokens = 4});
  rig.scheduler.submit(1, prompt(62), up_to(50), 0);
  rig.step();
  const StepPlan plan = rig.scheduler.plan();
  ASSERT_EQ(plan.entries[0].drafts, 4);
  ASSERT_EQ(plan.entries[0].pages.size(), 2U);
  rig.scheduler.complete(plan, std::vector<EntryResult>{{{1}, std::nullopt, {}}});
  EXPECT_EQ(rig.scheduler.sequence(1).computed, 63);
  EXPECT_EQ(rig.scheduler.sequence(1).pages.size(), 1U);
  EXPECT_EQ(rig.pages.free(), 2);
  const StepPlan next = rig.scheduler.plan();
  rig.scheduler.complete(next, std::vector<EntryResult>{{{1, 1, 1}, std::nullopt, {}}});
  EXPECT_EQ(rig.scheduler.sequence(1).computed, 66);
  EXPECT_EQ(rig.scheduler.sequence(1).pages.size(), 2U);
}

TEST(Scheduler, MisuseIsCaught) {
  Rig rig(10, 2);
  rig.scheduler.submit(1, prompt(5), up_to(9), 0);
  const StepPlan plan = rig.scheduler.plan();
  EXPECT_THROW(rig.scheduler.plan(), Failure);
  EXPECT_THROW(rig.scheduler.complete(plan, {}), Failure);
  rig.scheduler.complete(plan,
                         std::vector<EntryResult>{{{1, 2}, std::nullopt, {}}});  // one row cannot yield two tokens
  const auto events = rig.scheduler.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].finish, FinishReason::error);
  EXPECT_THROW(rig.scheduler.sequence(1), Failure);
}

}  // namespace
}  // namespace trireme::engine
