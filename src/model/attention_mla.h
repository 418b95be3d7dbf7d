// The attention of an MLA layer.
#pragma once

#include <cstdint>

#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

// out = W_o (MLA(x) * sigmoid(W_g x)); x is the normed input [T, hidden]. Stores the latent rows of the batch in the
// pages of MLA layer `index` (counted among MLA layers) and attends over them in absorbed form.
void mla_attention(const Pass& pass, const MlaWeights& w, int64_t index, ConstRows x, Rows out);

}  // namespace trireme::model
