#include "model/workspace.h"

#include <algorithm>

namespace trireme::model {
namespace {

constexpr int64_t kLine = 64;                    // bytes of a cache line
constexpr int64_t kSmallestBlock = 1024 * 1024;  // bytes

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Rows Workspace::rows(int64_t count, int64_t cols) {
  const int64_t stride = round_up(cols, kLine / 4);
  return {reinterpret_cast<float*>(take(count * stride * 4)), count, cols, stride};
}

std::span<float> Workspace::floats(int64_t count) {
  return {reinterpret_cast<float*>(take(count * 4)), static_cast<size_t>(count)};
}

std::span<int32_t> Workspace::ints(int64_t count) {
  return {reinterpret_cast<int32_t*>(take(count * 4)), static_cast<size_t>(count)};
}

std::byte* Workspace::take(int64_t bytes) {
  const int64_t need = round_up(std::max<int64_t>(bytes, 1), kLine);
  if (block_ == 0 && used_ == 0 && blocks_.size() > 1) merge();
  if (blocks_.empty()) blocks_.emplace_back(std::max(need, kSmallestBlock));
  if (used_ + need > blocks_[block_].bytes()) {
    // Blocks behind the one in use hold nothing: the next one may be replaced, so that none lies idle for being too
    // small.
    if (++block_ == blocks_.size()) blocks_.emplace_back();
    if (Buffer& next = blocks_[block_]; next.bytes() < need) {
      next = Buffer();  // the old memory goes first
      next = Buffer(std::max(need, kSmallestBlock));
    }
    used_ = 0;
  }
  std::byte* taken = blocks_[block_].data() + used_;
  used_ += need;
  return taken;
}

// Nothing is in use and the last pass needed several blocks: the next one of that size gets a single block. Not done
// when the last scope ends, since a destructor must not throw.
void Workspace::merge() {
  int64_t total = 0;
  for (const Buffer& b : blocks_) total += b.bytes();
  blocks_.clear();
  blocks_.emplace_back(total);
}

}  // namespace trireme::model
