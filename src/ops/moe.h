// Router and routed experts.
#pragma once

#include <cstdint>
#include <span>

#include "ops/activation.h"
#include "ops/linear.h"
#include "tensor/matrix.h"

namespace trireme::ops {

// s = sigmoid(logits); the top_k largest of s + bias, by falling biased score, lowest expert first among equals; a NaN
// score counts as the smallest. Weights are s of the chosen (unbiased), divided by their sum + 1e-20 if renormalize,
// times scaling. float32 in either precision.
struct RouterArgs {
  ConstRows logits;             // [T, experts]
  const float* bias = nullptr;  // [experts]; null: no bias
  int64_t top_k = 0;
  bool renormalize = true;
  float scaling = 1.0F;
  int32_t* ids = nullptr;    // [T, top_k] out
  float* weights = nullptr;  // [T, top_k] out
};

struct Expert {
  PackedMatrix gate;  // w1 [inter, in]
  PackedMatrix up;    // w3 [inter, in]
  PackedMatrix down;  // w2 [in, inter]
};

// y_t = sum_j weights[t,j] * down(glu(gate z_t, up z_t)) of expert ids[t,j]. The products of an expert are rounded as
// linear and glu round; the sum over j runs in the order of j in float32 and is rounded once.
struct ExpertsArgs {
  ConstRows z;  // [T, in]
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
  int64_t top_k = 0;
  std::span<const Expert> experts;
  Glu glu;
  Rows y;  // [T, in]
};

// The sum over j of ExpertsArgs for products that were computed elsewhere:
//   out_t = sum_j weights[t,j] * y[t * top_k + j], in the order of j in float32, rounded once.
// With y from `experts` for single pairs (top_k 1, weights 1) the bits are those of one `experts` call for all pairs.
struct CombineArgs {
  ConstRows y;                     // [T * top_k, in], one row a (token, choice) pair
  const float* weights = nullptr;  // [T, top_k]
  int64_t top_k = 0;
  Rows out;  // [T, in]; does not overlap y
};

}  // namespace trireme::ops
