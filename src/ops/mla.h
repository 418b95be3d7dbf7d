// Multi-head latent attention in absorbed form over paged latents, for prefill and decode alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"
#include "tensor/matrix.h"

namespace trireme::ops {

inline constexpr int64_t kPageTokens = 64;

// One layer's pages: page p holds kPageTokens rows of `width` elements (the normed latent, then the unrotated key part)
// at base + p * page_bytes().
struct LatentPages {
  std::byte* base = nullptr;
  DType dtype = DType::bf16;  // bf16 or f32
  int64_t width = 0;          // latent + rope

  int64_t page_bytes() const { return kPageTokens * width * dtype_bytes(dtype); }
};

// The rows of one sequence in a batch. Row i is the sequence's token number position + i; token t lives in page
// pages[t / kPageTokens], row t % kPageTokens.
struct MlaSegment {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;
  std::span<const int32_t> pages;  // at least (position + rows) / kPageTokens, rounded up
};

// Stores latent rows: rows of `latent` [T, width] go to the segments' tokens.
struct StoreLatentArgs {
  ConstRows latent;
  LatentPages pages;
  std::span<const MlaSegment> segments;
};

// For each row t and head h, over the tokens i <= the row's own token of its sequence (already stored):
//   s_i = scale * q[t,h] . row_i ;  p = softmax(s) ;  ctx[t,h] = sum_i p_i * row_i[0 .. latent)
// with q[t,h] = [ W_kc[h]^T q_nope | q_rope ]. Scores, softmax and sums in float32. In bf16 precision the weights are
// rounded before the sum: the reference rounds p, a backend with an online softmax rounds exp(s - the maximum so far)
// and divides by the sum of the unrounded ones at the end. The bits of a row depend on its own sequence only: keys are
// visited page by page from token 0.
struct MlaArgs {
  int64_t heads = 0;
  int64_t latent = 0;
  float scale = 0;
  ConstRows q;  // [T, heads * width]
  LatentPages pages;
  std::span<const MlaSegment> segments;
  Rows ctx;  // [T, heads * latent], rounded
};

}  // namespace trireme::ops
