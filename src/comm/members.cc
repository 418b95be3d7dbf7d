#include "comm/members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace trireme::comm {

int place_in_group(const std::string& name, std::span<const int> members, int rank, int world_size) {
  const bool rising = std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  const auto place = std::find(members.begin(), members.end(), rank);
  if (!rising || place == members.end() || members.front() < 0 || members.back() >= world_size) {
    throw BadInput(
        fmt::format("group {} of ranks {}, asked for by rank {}: its members must be this rank and others, "
                    "rising, from 0 to {}",
                    name, fmt::join(members, ", "), rank, world_size - 1));
  }
  return static_cast<int>(place - members.begin());
}

}  // namespace trireme::comm
