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

// Which tokens of every sequence are stored here: those with t mod count == index, token t as local row t / count. One
// page thus covers kPageTokens * count tokens of the sequence. With count 1 that is all of them.
struct TokenShard {
  int64_t index = 0;  // of [0, count)
  int64_t count = 1;

  constexpr bool owns(int64_t token) const { return token % count == index; }
  // Local rows that the first `tokens` tokens of a sequence take here; they are rows [0, local_rows).
  constexpr int64_t local_rows(int64_t tokens) const { return tokens / count + (index < tokens % count ? 1 : 0); }
};

// The rows of one sequence in a batch. Row i is the sequence's token number position + i; local row l (without shards:
// token l) lives in page pages[l / kPageTokens], row l % kPageTokens.
struct MlaSegment {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;
  std::span<const int32_t> pages;  // at least local_rows(position + rows) / kPageTokens, rounded up
};

// Stores latent rows: rows of `latent` [T, width] go to the segments' tokens. Tokens of other shards are skipped.
struct StoreLatentArgs {
  ConstRows latent;
  LatentPages pages;
  std::span<const MlaSegment> segments;
  TokenShard shard = {};
};

// For each row t and head h, over the tokens i <= the row's own token of its sequence (already stored) that the shard
// owns:
//   s_i = scale * q[t,h] . row_i ;  p = softmax(s) ;  ctx[t,h] = sum_i p_i * row_i[0 .. latent)
// with q[t,h] = [ W_kc[h]^T q_nope | q_rope ]. Scores, softmax and sums in float32. In bf16 precision the weights are
// rounded before the sum: the reference rounds p, a backend with an online softmax rounds exp(s - the maximum so far)
// and divides by the sum of the unrounded ones at the end. The bits of a row depend on its own sequence only: keys are
// visited in an order that only its length fixes (docs/numerics.md).
// lse[t,h] = log sum_i exp(s_i), natural and float32 in either precision, for merge_contexts. A row that sees no token
// of the shard has lse -infinity and a ctx of zeros.
struct MlaArgs {
  int64_t heads = 0;
  int64_t latent = 0;
  float scale = 0;
  ConstRows q;  // [T, heads * width]
  LatentPages pages;
  std::span<const MlaSegment> segments;
  Rows ctx;  // [T, heads * latent], rounded
  TokenShard shard = {};
  Rows lse = {};  // [T, heads]; data null: not wanted
};

// Attention over all tokens from what each shard saw: per row and head, over the parts r whose lse is not -infinity,
//   M = max_r lse_r ;  w_r = exp(lse_r - M) ;  out = sum_r w_r ctx_r / sum_r w_r
// with r ascending, in float32, rounded once. A part with lse -infinity is not looked at (its ctx may be NaN); zeros if
// there is no other. One part is copied. `out` may be the ctx of one of the parts.
struct MergeArgs {
  std::span<const ConstRows> ctx;  // of each part (one at least), [T, heads * latent]
  std::span<const ConstRows> lse;  // of each part, [T, heads]
  Rows out;                        // [T, heads * latent]
};

}  // namespace trireme::ops
