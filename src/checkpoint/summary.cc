#include "checkpoint/summary.h"

namespace trireme::checkpoint {

ParameterCount count_parameters(const ModelConfig& config, std::span<const CatalogueEntry> entries) {
  ParameterCount count;
  int64_t routed = 0;
  for (const CatalogueEntry& entry : entries) {
    count.used += entry.elements();
    count.padding += entry.padding;
    if (entry.group == Group::experts) routed += entry.elements();
  }
  count.active = count.used - routed;
  if (routed > 0) count.active += routed / config.moe.experts * config.moe.top_k;
  return count;
}

Summary summarize(const Checkpoint& checkpoint) {
  Summary summary;
  std::vector<CatalogueEntry> entries;
  for (const StoredWeight& weight : checkpoint.weights()) {
    for (GroupSummary* group : {&summary.groups[weight.entry.group], &summary.total}) {
      ++group->tensors;
      group->parameters += weight.entry.elements();
      group->bytes += weight.bytes;
      ++group->formats[weight.format];
    }
    entries.push_back(weight.entry);
    entries.back().padding = weight.elements - weight.entry.elements();
  }
  summary.parameters = count_parameters(checkpoint.config(), entries);
  return summary;
}

}  // namespace trireme::checkpoint
