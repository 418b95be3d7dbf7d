#include "text/detokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace trireme::text {

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  int64_t whole = static_cast<int64_t>(held_.size());
  // Only the last three bytes can be the beginning of a character that is still to come.
  for (int64_t back = 1; back <= std::min<int64_t>(3, whole); ++back) {
    const int64_t at = whole - back;
    const auto byte = static_cast<uint8_t>(held_[static_cast<size_t>(at)]);
    if ((byte & 0xC0) == 0x80) continue;
    if (next_character(held_, at).kind == Utf8Step::Kind::incomplete) whole = at;
    break;
  }
  std::string out = replace_invalid(std::string_view(held_).substr(0, static_cast<size_t>(whole)));
  held_.erase(0, static_cast<size_t>(whole));
  return out;
}

std::string Utf8Stream::flush() {
  std::string out = replace_invalid(held_);
  held_.clear();
  return out;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw BadInput("stop: a stop string must not be empty");
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  // The stop string that is complete first ends the text, so that the result does not depend on how the text was cut.
  size_t found_begin = 0;
  size_t found_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < found_end || (end == found_end && begin < found_begin)) {
      found_begin = begin;
      found_end = end;
      matched_ = stop;
    }
  }
  if (found_end != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, found_begin);
    held_.clear();
    return out;
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) keep = length;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::flush() {
  std::string out;
  out.swap(held_);
  return out;
}

}  // namespace trireme::text
