#include "checkpoint/read_ahead.h"

#include <algorithm>

namespace trireme::checkpoint {
namespace {

constexpr int64_t kWindow = int64_t{64} << 20;

}  // namespace

void ReadAhead::set_ranges(std::vector<std::vector<ByteRange>> ranges) {
  files_.clear();
  for (auto& wanted : ranges) {
    std::sort(wanted.begin(), wanted.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    std::vector<ByteRange> merged;
    for (const ByteRange& range : wanted) {
      if (!merged.empty() && range.begin <= merged.back().end) {
        merged.back().end = std::max(merged.back().end, range.end);
      } else {
        merged.push_back(range);
      }
    }
    files_.push_back({std::move(merged), {}});
  }
}

void ReadAhead::want(int64_t number, const SafetensorsFile& file, int64_t begin, int64_t end) const {
  const std::lock_guard lock(mutex_);
  FileState& state = files_[static_cast<size_t>(number)];
  const bool inside = begin >= state.asked.begin && begin <= state.asked.end;
  if (inside && end + kWindow / 2 <= state.asked.end) return;
  const ByteRange next{inside ? state.asked.end : begin, end + kWindow};
  const auto first = std::partition_point(state.ranges.begin(), state.ranges.end(),
                                          [&](const ByteRange& range) { return range.end <= next.begin; });
  for (auto range = first; range != state.ranges.end() && range->begin < next.end; ++range) {
    file.will_need(std::max(range->begin, next.begin), std::min(range->end, next.end));
  }
  state.asked = {inside ? state.asked.begin : begin, next.end};
}

}  // namespace trireme::checkpoint
