// What the layers of one forward pass share.
//
// Rounding in bf16 precision: a result is rounded where it becomes the input of a matrix product, a latent page, the
// convolution state or the residual stream. Projections that only enter float32 arithmetic (decay, write strength,
// gates, gate and up of a dense MLP, latents before their norm, sub-layer outputs before they are added) are asked for
// with Output::f32: it costs nothing and keeps the model closer to its float64 reference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "comm/stream.h"
#include "model/batch.h"
#include "model/parallel.h"
#include "model/recorder.h"
#include "model/replay.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace trireme::model {

class WeightShard;

struct Pass {
  const checkpoint::ModelConfig& config;  // heads are the rank's
  const ops::Ops& ops;
  const Batch& batch;
  const StateViews& states;
  Workspace& workspace;
  Recorder trace;
  const Parallel& parallel;
  StepShape shape = {};
  comm::Stream* side = nullptr;                // set if experts are divided
  WeightShard* shard = nullptr;                // set if the rank keeps blocks of a weight shard
  ReplayRecord* replay = nullptr;              // set if a segment is not committed
  std::vector<ops::MlaSegment> segments = {};  // row ranges, positions and pages of the batch's segments
};

}  // namespace trireme::model
