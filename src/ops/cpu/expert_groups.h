// The (token, choice) pairs of a batch, gathered by expert.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::ops::cpu {

// One expert's pairs: places [begin, begin + count) of ExpertGroups::slots.
struct ExpertGroup {
  int64_t expert = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

struct ExpertGroups {
  std::vector<int64_t> slots;       // token * top_k + choice, rising within a group
  std::vector<ExpertGroup> groups;  // experts with work, most pairs first
};

// `ids` holds `pairs` numbers from 0 to experts - 1.
void group_by_expert(const int32_t* ids, int64_t pairs, int64_t experts, ExpertGroups& out);

}  // namespace trireme::ops::cpu
