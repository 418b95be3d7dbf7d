#include "model/workspace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "support/scarce.h"

namespace trireme::model {
namespace {

constexpr int64_t kFloats = int64_t{16} << 20;  // 64 MiB

TEST(Workspace, GivesTheSameMemoryAgain) {
  Workspace workspace;
  const float* first = nullptr;
  {
    const Workspace::Scope scope(workspace);
    workspace.floats(100);
    workspace.floats(kFloats);  // a second block
  }
  for (int round = 0; round < 2; ++round) {
    const Workspace::Scope scope(workspace);
    const float* small = workspace.floats(100).data();
    const float* large = workspace.floats(kFloats).data();
    EXPECT_GE(large, small + 100);
    EXPECT_LT(large - small, kFloats);  // one block now
    if (round == 0) first = small;
    EXPECT_EQ(small, first);
  }
}

// A scope that ends while memory is short, as it does when a pass ran out of it: its destructor must take none.
TEST(Workspace, AScopeEndsWithoutMemory) {
  if (!trireme::testing::kScarcityWorks) GTEST_SKIP();
  const auto run = [] {
    Workspace workspace;
    {
      const Workspace::Scope scope(workspace);
      workspace.floats(100);
      workspace.floats(kFloats);
      trireme::testing::leave_address_space(-kFloats * 2);  // the blocks could not be taken once more
    }
    try {
      workspace.floats(kFloats);
      _exit(1);
    } catch (const std::bad_alloc&) {
    }
    trireme::testing::lift_address_space();
    workspace.floats(kFloats)[kFloats - 1] = 1;
    _exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace trireme::model
