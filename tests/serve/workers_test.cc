#include "serve/workers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "base/error.h"
#include "support/scarce.h"

namespace trireme::serve {
namespace {

TEST(Workers, SayThatTheSystemHasNoMoreThreads) {
  if (!trireme::testing::kScarcityWorks) GTEST_SKIP();
  const auto too_many = [] {
    trireme::testing::leave_address_space(int64_t{256} << 20);
    try {
      const Workers workers(1024);
    } catch (const Failure& e) {
      std::fprintf(stderr, "%s", e.what());
      _exit(0);
    }
    _exit(1);
  };
  EXPECT_EXIT(too_many(), ::testing::ExitedWithCode(0), "worker thread [0-9]+ of 1024 cannot be started");
}

}  // namespace
}  // namespace trireme::serve
