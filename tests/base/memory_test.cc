#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace trireme {
namespace {

TEST(AvailableMemory, IsPartOfWhatTheMachineHas) {
  const std::optional<int64_t> available = available_memory();
  ASSERT_TRUE(available);
  EXPECT_GT(*available, int64_t{1} << 20);
  EXPECT_LE(*available, static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

}  // namespace
}  // namespace trireme
