// Latent attention with keys and values expanded from the latents. No backend runs it: tests use it to show that the
// absorbed form of Ops::mla is the same function.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace trireme::ops::reference {

// One sequence from its first token. Per head h, with [k_n(i) | v(i)] = W_kvb[h] c_i, W_kvb[h] the rows h * (nope +
// value) onwards:
//   s_i = scale * (q_n . k_n(i) + q_r . k_r(i)), i <= t;  out[t,h] = sum_i softmax(s)_i v(i)
// float64 inside, nothing rounded.
struct MlaExpandedArgs {
  int64_t heads = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  int64_t latent = 0;
  float scale = 0;
  ConstRows q;        // [T, heads * (nope + rope)], a head's row is [ q_n | q_r ]
  ConstRows latents;  // [T, latent + rope], a row is [ c | k_r ]
  ConstRows w_kvb;    // [heads * (nope + value), latent]
  Rows out;           // [T, heads * value]
};

void mla_expanded(const MlaExpandedArgs& args);

}  // namespace trireme::ops::reference
