// What must never happen, made to happen: steps that throw, and a scheduler whose books are wrong. Every request ends
// once, with an error, and the engine goes on or says that it cannot.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/nano.h"
#include "engine/scheduler.h"

namespace trireme::engine {
namespace {

// Makes the request own a page twice, which the pool notices when both are given back.
void spoil(const Sequence& sequence) {
  auto& pages = const_cast<Sequence&>(sequence).pages;
  pages.push_back(pages.front());
}

// An engine whose first step waits until the requests of the second are all in, so that they run together. `act` sees
// the second step, once.
class Together {
 public:
  explicit Together(std::function<void(std::span<const Sequence* const>)> act)
      : engine(nano_options(), [this, act = std::move(act)](std::span<const Sequence* const> sequences) {
          ++steps_;
          if (steps_ == 1) open_.get_future().wait();
          if (steps_ == 2) act(sequences);
        }) {
    holder = ask(engine, {5, 6}, greedy(4000));
    while (engine.stats().running < 1) std::this_thread::yield();
  }
  void go() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::atomic<int> steps_ = 0;

 public:
  Engine engine;
  Asked holder;  // the request of the first step
};

void expect_error(const Asked& asked, const std::string& reason) {
  asked.heard->wait_end();
  EXPECT_EQ(asked.heard->finish(), FinishReason::error);
  EXPECT_NE(asked.heard->error().find(reason), std::string::npos) << asked.heard->error();
}

TEST(EngineFailure, AStepThatThrowsEndsItsRequestsAndNoOther) {
  Together rig([](auto) { throw std::runtime_error("out of luck"); });
  const Asked second = ask(rig.engine, {7, 8}, greedy(5));
  rig.go();
  expect_error(rig.holder, "the step failed: out of luck");
  expect_error(second, "the step failed: out of luck");
  rig.engine.wait_idle();
  expect_pools_full(rig.engine);
  const Asked after = ask(rig.engine, {7, 8}, greedy(5));
  rig.engine.wait_idle();
  Engine healthy(nano_options());
  const Asked expected = ask(healthy, {7, 8}, greedy(5));
  healthy.wait_idle();
  EXPECT_EQ(after.heard->finish(), FinishReason::length);
  EXPECT_EQ(after.heard->ids(), expected.heard->ids());
  EXPECT_EQ(rig.engine.stats().failed, 2);
}

// `done` ends well in the step in which `spoilt` brings the books down: its last event is lost and must be made up for.
TEST(EngineFailure, AFaultInTheSchedulerEndsEveryRequestAndTheEngineGoesOn) {
  Together rig([](auto sequences) { spoil(*sequences[2]); });
  const Asked done = ask(rig.engine, {7, 8}, greedy(1));
  const Asked spoilt = ask(rig.engine, {9, 10}, greedy(1));
  const Asked waiting = ask(rig.engine, random_prompt(1, 3000), greedy(1));
  rig.go();
  for (const Asked& asked : {rig.holder, done, spoilt, waiting}) expect_error(asked, "the engine failed: page");
  rig.engine.wait_idle();
  EXPECT_TRUE(rig.engine.stats().dead.empty());
  const Asked after = ask(rig.engine, {7, 8}, greedy(5));
  rig.engine.wait_idle();
  EXPECT_EQ(after.heard->finish(), FinishReason::length);
  EXPECT_EQ(rig.engine.stats().running, 0);
  EXPECT_EQ(rig.engine.stats().waiting, 0);
}

// What a listener holds may ask the engine when it goes, which it could not while the engine holds its lock.
struct Guest {
  Engine& engine;
  std::atomic<int>& gone;
  ~Guest() {
    (void)engine.stats();
    ++gone;
  }
};

TEST(EngineFailure, AnEngineThatCannotEndItsRequestsIsDead) {
  std::atomic<int> gone = 0;
  Together rig([](auto sequences) {
    spoil(*sequences[1]);
    spoil(*sequences[2]);
  });
  const Asked first = ask(rig.engine, {7, 8}, greedy(1));
  const Asked second = ask(rig.engine, {9, 10}, greedy(1));
  rig.engine.submit(
      {random_prompt(1, 3000), greedy(1), 0, [guest = std::make_shared<Guest>(rig.engine, gone)](const Output&) {}});
  rig.go();
  rig.engine.wait_idle();
  for (const Asked& asked : {rig.holder, first, second}) expect_error(asked, "the engine cannot go on: page");
  EXPECT_EQ(gone, 1);
  EXPECT_NE(rig.engine.stats().dead.find("cannot go on"), std::string::npos);
  rig.engine.cancel(rig.holder.id);
  try {
    ask(rig.engine, {7, 8}, greedy(1));
    FAIL() << "a dead engine took a request";
  } catch (const QueueFull&) {
    FAIL() << "a dead engine says that its queue is full";
  } catch (const Failure& e) {
    EXPECT_NE(std::string(e.what()).find("cannot go on"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace trireme::engine
