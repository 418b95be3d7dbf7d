#include "ops/cpu/expert_groups.h"

#include <algorithm>

namespace trireme::ops::cpu {

void group_by_expert(const int32_t* ids, int64_t pairs, int64_t experts, ExpertGroups& out) {
  std::vector<int64_t> next(static_cast<size_t>(experts) + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++next[static_cast<size_t>(ids[i]) + 1];
  out.groups.clear();
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    const int64_t count = next[e + 1];
    if (count > 0) out.groups.push_back({static_cast<int64_t>(e), next[e], count});
    next[e + 1] += next[e];
  }
  out.slots.resize(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) out.slots[static_cast<size_t>(next[static_cast<size_t>(ids[i])]++)] = i;
  std::stable_sort(out.groups.begin(), out.groups.end(),
                   [](const ExpertGroup& a, const ExpertGroup& b) { return a.count > b.count; });
}

}  // namespace trireme::ops::cpu
