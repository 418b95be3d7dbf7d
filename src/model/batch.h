// What a forward pass works on: tokens of several sequences and plain views of their state. The engine fills these from
// its pools.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/mla.h"
#include "tensor/matrix.h"

namespace trireme::model {

// One KDA layer's part of the slot pool: slot s has its recurrent state at recurrent + s * recurrent_stride,
// [heads][key][value] float32, and its convolution state at conv + s * conv_stride, [taps - 1][3 * heads * dim] float32
// with the inputs of q, k and v side by side, oldest first.
struct KdaLayerView {
  float* recurrent = nullptr;
  int64_t recurrent_stride = 0;
  float* conv = nullptr;
  int64_t conv_stride = 0;
};

// State of all layers, in model order.
struct StateViews {
  std::vector<KdaLayerView> kda;         // one a KDA layer
  std::vector<ops::LatentPages> latent;  // one an MLA layer
};

// A copy of the KDA state of a segment after its first `rows` rows, into another slot.
struct StateCheckpoint {
  int64_t rows = 0;
  int32_t slot = 0;
};

// The rows of one sequence in a batch.
struct Segment {
  int64_t rows = 0;
  int64_t position =
      0;             // tokens of the sequence before the first row; 0 starts from zero state, whatever the slot holds
  int32_t slot = 0;  // KDA slot
  std::vector<int32_t> pages;  // MLA pages, enough for position + rows tokens
  bool commit = true;  // false (verification): the slot keeps its state; Model::commit folds the accepted rows in later
  std::vector<StateCheckpoint> checkpoints;  // by rising rows
};

struct Batch {
  std::vector<int32_t> tokens;      // of all segments, in order
  std::vector<Segment> segments;    // rows add up to tokens.size()
  std::vector<int64_t> logit_rows;  // rows of the batch whose logits are wanted, rising
  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

}  // namespace trireme::model
