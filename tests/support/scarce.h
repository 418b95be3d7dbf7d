// Makes memory scarce for a test that runs in a child process of its own (EXPECT_EXIT).
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace trireme::testing {

// Sanitizers hold address space of their own and end the process when they get no more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kScarcityWorks = false;
#else
inline constexpr bool kScarcityWorks = true;
#endif

// From now on the process may map `bytes` more than it has mapped now (less: a negative number).
inline void leave_address_space(int64_t bytes) {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + bytes);
  const rlimit both{limit, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &both);
}

inline void lift_address_space() {
  const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &none);
}

}  // namespace trireme::testing
