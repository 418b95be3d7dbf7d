#include "comm/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

TEST(Stream, WorkRunsInOrderOnAnotherThread) {
  std::vector<int> order;
  std::thread::id thread;
  Stream stream;
  for (int i = 0; i < 1000; ++i) stream.run([&order, i] { order.push_back(i); });
  stream.run([&] { thread = std::this_thread::get_id(); }).wait();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(Stream, AnEventWaitsForItsWorkOnly) {
  std::promise<void> gate;
  Stream stream;
  std::atomic<bool> second = false;
  const Event first = stream.run([] {});
  const Event last = stream.run([&] {
    gate.get_future().wait();
    second = true;
  });
  first.wait();
  EXPECT_FALSE(second);
  gate.set_value();
  const Event copy = last;
  copy.wait();
  EXPECT_TRUE(second);
  last.wait();  // again
  Event().wait();
}

TEST(Stream, AnExceptionReachesItsEventAndNoOther) {
  Stream stream;
  int ran = 0;
  const Event bad = stream.run([] { throw std::runtime_error("planted"); });
  const Event good = stream.run([&] { ++ran; });
  EXPECT_NO_THROW(good.wait());
  EXPECT_EQ(ran, 1);
  for (int i = 0; i < 2; ++i) {
    try {
      bad.wait();
      FAIL() << "the event forgot the exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "planted");
    }
  }
}

TEST(Stream, TheDestructorFinishesTheWork) {
  std::atomic<int> ran = 0;
  Event last;
  {
    Stream stream;
    for (int i = 0; i < 10; ++i) {
      last = stream.run([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ran;
      });
    }
  }
  EXPECT_EQ(ran, 10);
  last.wait();
}

TEST(Stream, WorkMayGiveWork) {
  Stream stream;
  Event inner;
  stream.run([&] { inner = stream.run([] { throw std::runtime_error("inner"); }); }).wait();
  EXPECT_THROW(inner.wait(), std::runtime_error);
}

}  // namespace
}  // namespace trireme::comm
