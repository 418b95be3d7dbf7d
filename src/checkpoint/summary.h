// What a checkpoint holds, counted.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "checkpoint/catalogue.h"
#include "checkpoint/checkpoint.h"

namespace trireme::checkpoint {

struct ParameterCount {
  int64_t used = 0;     // elements that the model reads
  int64_t padding = 0;  // elements that are stored behind them (A_log); `used + padding` is what a release counts
  int64_t active = 0;   // used for one token: all but the routed experts that were not chosen
};

// From shapes alone; needs no files.
ParameterCount count_parameters(const ModelConfig& config, std::span<const CatalogueEntry> entries);

struct GroupSummary {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  std::map<WeightFormat, int64_t> formats;  // tensors of each
};

struct Summary {
  ParameterCount parameters;
  std::map<Group, GroupSummary> groups;
  GroupSummary total;
};

Summary summarize(const Checkpoint& checkpoint);

}  // namespace trireme::checkpoint
