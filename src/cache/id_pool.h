// Numbers 0..count-1, each either free or taken: pages and slots are handed out as such numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace trireme::cache {

inline constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();

// Not thread-safe: one scheduler owns it. Which number comes next depends only on the calls before, so a run can be
// repeated.
class IdPool {
 public:
  // `name` appears in errors ("page", "slot"). Throws Failure unless 0 <= count <= kMostIds.
  IdPool(std::string name, int64_t count);

  int64_t total() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  bool full() const { return free() == total(); }
  bool is_taken(int32_t id) const;

  // Throws Failure if none is free; callers look at free() first.
  int32_t take();
  // Appends `count` numbers to `out`; all or none: returns false and takes nothing when fewer are free.
  bool take(int64_t count, std::vector<int32_t>& out);
  // Throws Failure for a number that is not of this pool or is free already (a double free is a bug that must not stay
  // hidden).
  void give_back(int32_t id);
  void give_back(std::span<const int32_t> ids);

 private:
  std::string name_;
  std::vector<int32_t> free_;  // a stack: the number given back last is taken first, so that its memory is still warm
  std::vector<bool> taken_;
};

}  // namespace trireme::cache
