// The inside of one forward pass, by the names that the golden files use.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme::model {

struct TraceTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // ids as floats are exact below 2^24
  bool integer = false;       // written as I32
};

// Filled by Model::forward for a batch of one segment that starts at position 0. Names without the "trace." prefix.
struct Trace {
  std::map<std::string, TraceTensor> tensors;
};

}  // namespace trireme::model
