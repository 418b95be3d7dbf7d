// The MLP half of a layer: dense, or a mixture of experts in a latent space with a shared expert.
#pragma once

#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

ops::Glu glu_of(const checkpoint::ModelConfig& config);

// out = W_down glu(W_gate x, W_up x); x is the normed input [T, hidden].
void dense_mlp(const Pass& pass, const MlpWeights& w, ConstRows x, Rows out);

// out = W_latent_up norm( sum of weighted experts of (W_latent_down x) ) + shared expert of x; without a latent space
// the experts work on x itself. The router reads x and stays float32.
void moe_mlp(const Pass& pass, const MoeWeights& w, ConstRows x, Rows out);

}  // namespace trireme::model
