// Runs micro-batches through one stage of a pipeline: receives what the stage before sends, runs the forward pass,
// sends on. The order is StageOrder's; this file only carries it out.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/stream.h"
#include "engine/stage_order.h"
#include "model/model.h"

namespace trireme::engine {

struct MicroBatch {
  int64_t rows = 0;     // own rows of this rank; the same on the rank with this number in every stage
  uint64_t digest = 0;  // batch_digest; ignored without rows
};

class StagePipeline {
 public:
  // `proxy` and `bank` are two communicators of the same group, whose rank i is this rank's counterpart in stage i;
  // null if there is one stage. `columns` is the hidden width.
  StagePipeline(const StageConfig& config, int64_t columns, comm::Wire wire, comm::Communicator* proxy,
                comm::Communicator* bank);

  // forward(i, before) is called for every micro-batch in order, also for those without rows (other ranks of the stage
  // may have some); `before` is null on the first stage. Returns when all are computed and sent.
  using Forward = std::function<model::ForwardOutput(size_t micro_batch, const model::StageStream* before)>;
  void run(std::span<const MicroBatch> micro_batches, const Forward& forward);

 private:
  struct Run;

  StageConfig config_;
  int64_t columns_;
  comm::Wire wire_;
  comm::Communicator* proxy_;
  comm::Communicator* bank_;
  // Outlives every run: a run that throws must not wait for messages that never come.
  comm::Stream side_;
};

}  // namespace trireme::engine
