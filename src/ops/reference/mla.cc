// Latent attention in absorbed form.
#include <cstring>
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {
namespace {

// Where one token's latent row lives.
std::byte* token_address(const LatentPages& pages, const MlaSegment& segment, int64_t token) {
  const int64_t page = segment.pages[static_cast<size_t>(token / kPageTokens)];
  return pages.base + page * pages.page_bytes() + token % kPageTokens * pages.width * dtype_bytes(pages.dtype);
}

void load_row(const LatentPages& pages, const std::byte* from, float* to) {
  if (pages.dtype == DType::f32) {
    std::memcpy(to, from, static_cast<size_t>(pages.width) * sizeof(float));
    return;
  }
  for (int64_t d = 0; d < pages.width; ++d) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + d * 2, sizeof(bits));
    to[d] = bf16_to_float(bits);
  }
}

void store_row(const LatentPages& pages, const float* from, std::byte* to) {
  if (pages.dtype == DType::f32) {
    std::memcpy(to, from, static_cast<size_t>(pages.width) * sizeof(float));
    return;
  }
  for (int64_t d = 0; d < pages.width; ++d) {
    const uint16_t bits = float_to_bf16(from[d]);
    std::memcpy(to + d * 2, &bits, sizeof(bits));
  }
}

}  // namespace

void ReferenceOps::store_latent(const StoreLatentArgs& args) const {
  for (const MlaSegment& segment : args.segments) {
    for (int64_t i = 0; i < segment.rows; ++i) {
      store_row(args.pages, args.latent.row(segment.row_begin + i),
                token_address(args.pages, segment, segment.position + i));
    }
  }
}

void ReferenceOps::mla(const MlaArgs& args) const {
  const int64_t width = args.pages.width;
  for (const MlaSegment& segment : args.segments) {
    // The sequence's latents as one matrix.
    const int64_t tokens = segment.position + segment.rows;
    std::vector<float> latents(static_cast<size_t>(tokens * width));
    for (int64_t i = 0; i < tokens; ++i) {
      load_row(args.pages, token_address(args.pages, segment, i), latents.data() + i * width);
    }
    each_row(segment.rows * args.heads, [&](int64_t task) {
      const int64_t row = task / args.heads;
      const int64_t head = task % args.heads;
      const float* q = args.q.row(segment.row_begin + row) + head * width;
      std::vector<double> p;
      for (int64_t i = 0; i <= segment.position + row; ++i) {
        p.push_back(args.scale * dot(q, latents.data() + i * width, width));
      }
      softmax(p);
      for (double& v : p) v = rounded(v);
      float* ctx = args.ctx.row(segment.row_begin + row) + head * args.latent;
      for (int64_t d = 0; d < args.latent; ++d) {
        double sum = 0;
        for (size_t i = 0; i < p.size(); ++i)
          sum += p[i] * latents[i * static_cast<size_t>(width) + static_cast<size_t>(d)];
        ctx[d] = rounded(sum);
      }
    });
  }
}

}  // namespace trireme::ops::reference
