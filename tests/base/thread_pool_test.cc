#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/scarce.h"

namespace trireme {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        SCOPED_TRACE(::testing::Message() << threads << " threads, " << count << " items, grain " << grain);
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        std::mutex mutex;
        std::vector<std::pair<int64_t, int64_t>> ranges;
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
          const std::lock_guard lock(mutex);
          ranges.emplace_back(begin, end);
        });
        for (const std::atomic<int>& n : seen) EXPECT_EQ(n, 1);
        for (const auto& [begin, end] : ranges) {
          EXPECT_LT(begin, end);
          EXPECT_TRUE(end - begin >= grain || end == count);
        }
      }
    }
  }
}

TEST(ThreadPool, ReallyUsesItsThreads) {
  ThreadPool pool(3);
  // Every thread waits for the others, so this ends only if three run at once.
  std::atomic<int> arrived{0};
  std::mutex mutex;
  std::set<std::thread::id> ids;
  pool.parallel_for(3, 1, [&](int64_t, int64_t) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3U);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(ThreadPool, RethrowsAndGoesOn) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      std::atomic<int> ran{0};
      try {
        pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            ++ran;
            if (i == 37) throw std::runtime_error("item 37");
          }
        });
        FAIL() << "the exception was lost";
      } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "item 37");
      }
      EXPECT_GE(ran, 38);
      std::atomic<int64_t> sum{0};
      pool.parallel_for(100, 7, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sum += i;
      });
      EXPECT_EQ(sum, 4950);
    }
  }
}

// Short loops back to back, then one after the workers have gone to sleep.
TEST(ThreadPool, Reuse) {
  ThreadPool pool(2);
  int64_t total = 0;
  for (int round = 0; round < 400; ++round) {
    std::atomic<int64_t> sum{0};
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t) { sum += begin + 1; });
    total += sum;
    if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(total, 400 * 36);
}

// Some threads start and wait, then one cannot: those must end, and the caller hear of it.
TEST(ThreadPool, SaysThatTheSystemHasNoMoreThreads) {
  if (!trireme::testing::kScarcityWorks) GTEST_SKIP();
  const auto too_many = [] {
    trireme::testing::leave_address_space(int64_t{256} << 20);
    try {
      const ThreadPool pool(1024);
    } catch (const Failure& e) {
      std::fprintf(stderr, "%s", e.what());
      _exit(0);
    }
    _exit(1);
  };
  EXPECT_EXIT(too_many(), ::testing::ExitedWithCode(0), "thread [0-9]+ of 1024 cannot be started: .*use fewer");
}

TEST(ThreadPool, CountsZeroAsOneACore) {
  EXPECT_EQ(thread_count(0), static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  EXPECT_EQ(thread_count(3), 3);
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  for (const int threads : {0, -1, 1025}) {
    try {
      ThreadPool pool(threads);
      FAIL() << threads << " threads were accepted";
    } catch (const BadInput& e) {
      EXPECT_NE(std::string(e.what()).find(std::to_string(threads)), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace trireme
