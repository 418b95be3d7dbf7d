// What the layers of one forward pass share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "model/batch.h"
#include "model/recorder.h"
#include "model/replay.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace trireme::model {

struct Pass {
  const checkpoint::ModelConfig& config;
  const ops::Ops& ops;
  const Batch& batch;
  const StateViews& states;
  Workspace& workspace;
  Recorder trace;
  ReplayRecord* replay = nullptr;              // set if a segment is not committed
  std::vector<ops::MlaSegment> segments = {};  // row ranges, positions and pages of the batch's segments
};

// The row ranges of a batch.
std::vector<ops::MlaSegment> segments_of(const Batch& batch);

}  // namespace trireme::model
