// Kimi Delta Attention: short convolution, gate, and the delta-rule recurrence over a float32 state.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/matrix.h"

namespace trireme::ops {

// Depthwise causal convolution and SiLU over the rows of one sequence in a batch:
//   y_t[c] = SiLU( sum_{j=0..taps-1} w[c][j] * x_{t-(taps-1)+j}[c] )
// where rows before the segment come from `state_in`: the last taps-1 inputs (before convolution), oldest first,
// [taps-1][channels]; null means zeros. `state_out` receives the same after the segment's last row; null: not kept; may
// be equal to state_in.
struct ConvSegment {
  int64_t row_begin = 0;
  int64_t rows = 0;
  const float* state_in = nullptr;
  float* state_out = nullptr;
};

struct ShortConvArgs {
  ConstRows x;                    // [T, channels], pre-convolution; must not overlap y
  const float* weight = nullptr;  // [channels][taps]; the last tap multiplies the current row
  int64_t taps = 4;
  std::span<const ConvSegment> segments;  // disjoint rows, together all rows of x
  Rows y;                                 // [T, channels], rounded
};

// What turns projections into the recurrence's inputs.
struct KdaGate {
  const float* a_log = nullptr;    // [heads]
  const float* dt_bias = nullptr;  // [heads * dim]
  bool bounded =
      true;  // true: g = lower_bound * sigmoid(exp(a_log) * (z + dt_bias)); false: -exp(a_log) * softplus(z + dt_bias)
  float lower_bound = -5.0F;
};

// q^ = q / sqrt(sum q^2 + 1e-6) * dim^-1/2, k^ = k / sqrt(sum k^2 + 1e-6), per head; log decay g (see KdaGate) per head
// and channel; beta = sigmoid(b) per head. All float32, none rounded.
struct KdaPrepareArgs {
  int64_t heads = 0;
  int64_t dim = 0;
  KdaGate gate;
  Rows q;          // [T, heads * dim], normalised and scaled in place
  Rows k;          // [T, heads * dim], normalised in place
  ConstRows z;     // [T, heads * dim], the decay projection
  ConstRows b;     // [T, heads], the write-strength projection
  Rows log_decay;  // [T, heads * dim] out, <= 0
  Rows beta;       // [T, heads] out
};

// A copy of the state inside a segment, after its first `rows` rows.
struct KdaCheckpoint {
  int64_t rows = 0;
  float* state = nullptr;
};

// The rows of one sequence in a batch. States are [heads][key channel][value channel] float32.
struct KdaSegment {
  int64_t row_begin = 0;
  int64_t rows = 0;
  const float* state_in = nullptr;  // null: zeros
  float* state_out = nullptr;       // after the last row; null: not kept (verification); may be equal to state_in
  std::span<const KdaCheckpoint> checkpoints;  // by rising rows, 1 <= rows <= segment rows
};

// Per head, for each row of a segment in order, from S = state_in:
//   S <- diag(exp(g)) S;   u = S^T k;   S <- S + k (beta (v - u))^T;   o = S^T q
// all float32. A segment of no rows stores state_in (or zeros) as state_out. The bits of a row and of every state
// depend on the rows before it in its own sequence only: how a sequence is cut into calls, and what else is in the
// batch, does not change them.
struct KdaArgs {
  int64_t heads = 0;
  int64_t dim = 0;      // of keys and of values
  ConstRows q, k, v;    // [T, heads * dim]; q and k from kda_prepare
  ConstRows log_decay;  // [T, heads * dim]
  ConstRows beta;       // [T, heads]
  Rows out;             // [T, heads * dim], rounded; data null: only states are wanted (commit of accepted rows)
  std::span<const KdaSegment> segments;
};

}  // namespace trireme::ops
