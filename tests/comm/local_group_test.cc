#include "comm/local_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"

namespace trireme::comm {
namespace {

constexpr std::chrono::milliseconds kWhile{50};

// The rule that keeps memory alive under readers: a collective that all have entered is finished by all.
TEST(LocalGroup, AnAbortDoesNotCutAMeetingThatAllEntered) {
  LocalGroup group("work", 2, std::chrono::seconds(60));
  const std::vector<std::byte> big(100000, std::byte{5});
  std::atomic<bool> aborted = false;
  std::atomic<bool> left = false;
  std::thread other([&] {
    EXPECT_NO_THROW({
      group.enter(0, {.operation = Operation::all_gather, .block_bytes = std::ssize(big), .send = big});
      while (!aborted) std::this_thread::yield();
      group.leave(0);
    });
    left = true;
  });
  const auto calls = group.enter(1, {.operation = Operation::all_gather, .block_bytes = std::ssize(big), .send = big});
  group.abort("planted");
  aborted = true;
  std::this_thread::sleep_for(kWhile);
  EXPECT_FALSE(left) << "rank 0 left while rank 1 reads its memory";
  EXPECT_EQ(calls[0].send.data(), big.data());
  group.leave(1);
  other.join();
  EXPECT_THROW(group.enter(1, {.operation = Operation::barrier}), Failure);
}

TEST(LocalGroup, NobodyCompletesAMeetingThatWasEnded) {
  LocalGroup group("work", 2, std::chrono::seconds(60));
  std::thread other([&] { EXPECT_THROW(group.enter(0, {.operation = Operation::barrier}), Failure); });
  std::this_thread::sleep_for(kWhile);
  group.abort("planted");
  EXPECT_THROW(group.enter(1, {.operation = Operation::barrier}), Failure);
  other.join();
}

TEST(LocalGroup, SmallDataIsTheGroupsOwn) {
  LocalGroup group("work", 1, std::chrono::seconds(60));
  std::vector<std::byte> small(16, std::byte{5});
  const auto calls = group.enter(0, {.operation = Operation::all_gather, .block_bytes = 16, .send = small});
  small.assign(16, std::byte{6});
  EXPECT_TRUE(calls[0].small);
  EXPECT_EQ(calls[0].send[15], std::byte{5});
}

}  // namespace
}  // namespace trireme::comm
