// The chunk-parallel form of the KDA recurrence, written from its own equations. No backend runs it: tests use it to
// show that the serial recurrence and the chunk form are the same function.
#pragma once

#include "ops/kda.h"

namespace trireme::ops::reference {

// Does what Ops::kda does in f32 precision, `chunk` rows at a time (chunk >= 1; the last one of a segment may be
// shorter), in float64 with float32 results. Checkpoints may fall inside a chunk.
//
// For a chunk with incoming state S0 and, per key channel, G_t = g_1 + ... + g_t:
//   A[t,s] = beta_t sum_d k_t[d] k_s[d] exp(G_t[d] - G_s[d])  for s < t
//   P[t,s] =        sum_d q_t[d] k_s[d] exp(G_t[d] - G_s[d])  for s <= t
//   (I + A) V' = beta (V - (K exp(G)) S0)                     by forward substitution
//   O = (Q exp(G)) S0 + P V'
//   S_t = diag(exp(G_t)) S0 + sum_{s<=t} (k_s exp(G_t - G_s)) V'_s^T
// Differences of logs are taken before exp, so that nothing overflows however long the chunk.
void kda_chunked(const KdaArgs& args, int64_t chunk);

}  // namespace trireme::ops::reference
