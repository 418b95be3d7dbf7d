#include "cache/id_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::cache {
namespace {

TEST(IdPool, HandsOutEveryNumberOnce) {
  IdPool pool("page", 5);
  std::vector<int32_t> ids;
  ASSERT_TRUE(pool.take(5, ids));
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()), (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.free(), 0);
  EXPECT_THROW(pool.take(), Failure);
  pool.give_back(ids);
  EXPECT_TRUE(pool.full());
}

TEST(IdPool, RefusesMoreThanItsNumbersCanName) {
  EXPECT_THROW(IdPool("page", kMostIds + 1), Failure);
  EXPECT_THROW(IdPool("page", -1), Failure);
}

TEST(IdPool, TakesAllOrNothing) {
  IdPool pool("page", 3);
  std::vector<int32_t> ids{7};
  EXPECT_FALSE(pool.take(4, ids));
  EXPECT_EQ(ids, std::vector<int32_t>{7});
  EXPECT_EQ(pool.free(), 3);
}

TEST(IdPool, DoubleFreeAndForeignNumbersAreErrors) {
  IdPool pool("slot", 2);
  const int32_t id = pool.take();
  pool.give_back(id);
  try {
    pool.give_back(id);
    FAIL() << "a double free passed";
  } catch (const Failure& e) {
    EXPECT_NE(std::string(e.what()).find("slot 0 was given back but is free already"), std::string::npos) << e.what();
  }
  EXPECT_THROW(pool.give_back(2), Failure);
  EXPECT_THROW(pool.give_back(-1), Failure);
  EXPECT_EQ(pool.free(), 2);
}

TEST(IdPool, RandomUseConservesNumbers) {
  IdPool pool("page", 40);
  std::vector<int32_t> held;
  for (uint64_t step = 0; step < 5000; ++step) {
    if (uniform_at(1, step, 0) < 0.5) {
      pool.take(static_cast<int64_t>(uniform_at(1, step, 1) * 6), held);
    } else if (!held.empty()) {
      const auto at = static_cast<size_t>(uniform_at(1, step, 2) * static_cast<double>(held.size()));
      pool.give_back(held[at]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_EQ(pool.free() + static_cast<int64_t>(held.size()), pool.total());
    ASSERT_EQ(std::set<int32_t>(held.begin(), held.end()).size(), held.size());
  }
}

}  // namespace
}  // namespace trireme::cache
