// Operations that only the drafts use: rotary positions and attention of a block over a window of context.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/matrix.h"

namespace trireme::ops {

// Half-rotation RoPE in place, per head of `dim` columns, with a = x[0..dim/2), b = x[dim/2..dim) and
// angle_j = position * theta^(-2j/dim) in float64:
//   a' = a cos - b sin ; b' = b cos + a sin, rounded.
struct RopeArgs {
  Rows x;  // [T, heads * dim]
  int64_t dim = 0;
  double theta = 10000.0;
  std::span<const int64_t> positions;  // [T]
};

// Grouped-query attention of one block: block row r (absolute position block_position + r) sees every block row and the
// context rows whose position p > block_position + r - window. Head h reads key/value head h / (q_heads / kv_heads).
//   out[r,h] = softmax(scale * q . k) v, float32 inside, rounded.
struct DraftAttentionArgs {
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t dim = 0;
  float scale = 0;
  int64_t window = 0;
  int64_t context_position = 0;  // position of the first context row
  int64_t block_position = 0;
  ConstRows q;                     // [R, q_heads * dim]
  ConstRows context_k, context_v;  // [L, kv_heads * dim], rising positions
  ConstRows block_k, block_v;      // [R, kv_heads * dim]
  Rows out;                        // [R, q_heads * dim]
};

}  // namespace trireme::ops
