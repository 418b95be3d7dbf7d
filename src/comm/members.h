// What both backends check of World::group's arguments.
#pragma once

#include <span>
#include <string>

namespace trireme::comm {

// BadInput unless `members` are world ranks in rising order with `rank` among them. Returns rank's place in the group.
int place_in_group(const std::string& name, std::span<const int> members, int rank, int world_size);

}  // namespace trireme::comm
