// What verification keeps so that accepted rows can be folded into the KDA state later.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/matrix.h"

namespace trireme::model {

// One KDA layer's inputs to its state, rows of all uncommitted segments one after the other.
struct KdaReplay {
  Matrix raw;        // [R, 3 * width] inputs of the convolutions
  Matrix k, v;       // [R, width] inputs of the recurrence
  Matrix log_decay;  // [R, width]
  Matrix beta;       // [R, heads]
};

struct ReplayRecord {
  std::vector<int64_t> row_begin;  // one a segment of the batch: its first row in the matrices, -1 if it was committed
  std::vector<KdaReplay> layers;   // one a KDA layer
  int64_t rows = 0;
};

}  // namespace trireme::model
