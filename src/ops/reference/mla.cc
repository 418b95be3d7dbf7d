// Latent attention in absorbed form.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {
namespace {

// Where one local row of a sequence lives.
std::byte* row_address(const LatentPages& pages, const MlaSegment& segment, int64_t row) {
  const int64_t page = segment.pages[static_cast<size_t>(row / kPageTokens)];
  return pages.base + page * pages.page_bytes() + row % kPageTokens * pages.width * dtype_bytes(pages.dtype);
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

double log_sum_exp(const std::vector<double>& s) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double v : s) largest = std::max(largest, v);
  const double shift = std::isinf(largest) ? 0 : largest;  // no score, or none that is finite
  double sum = 0;
  for (const double v : s) sum += std::exp(v - shift);
  return shift + std::log(sum);
}

}  // namespace

void ReferenceOps::store_latent(const StoreLatentArgs& args) const {
  for (const MlaSegment& segment : args.segments) {
    for (int64_t i = 0; i < segment.rows; ++i) {
      const int64_t token = segment.position + i;
      if (!args.shard.owns(token)) continue;
      store_row(args.pages, args.latent.row(segment.row_begin + i),
                row_address(args.pages, segment, token / args.shard.count));
    }
  }
}

void ReferenceOps::mla(const MlaArgs& args) const {
  const int64_t width = args.pages.width;
  for (const MlaSegment& segment : args.segments) {
    // The sequence's latents as one matrix.
    const int64_t stored = args.shard.local_rows(segment.position + segment.rows);
    std::vector<float> latents(static_cast<size_t>(stored * width));
    for (int64_t i = 0; i < stored; ++i) {
      load_row(args.pages, row_address(args.pages, segment, i), latents.data() + i * width);
    }
    each_row(segment.rows * args.heads, [&](int64_t task) {
      const int64_t row = task / args.heads;
      const int64_t head = task % args.heads;
      const float* q = args.q.row(segment.row_begin + row) + head * width;
      const int64_t visible = args.shard.local_rows(segment.position + row + 1);
      std::vector<double> p;
      for (int64_t i = 0; i < visible; ++i) p.push_back(args.scale * dot(q, latents.data() + i * width, width));
      if (args.lse.data != nullptr) {
        args.lse.row(segment.row_begin + row)[head] = static_cast<float>(log_sum_exp(p));
      }
      if (visible > 0) softmax(p);
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

void ReferenceOps::merge_contexts(const MergeArgs& args) const {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const int64_t heads = args.lse.front().cols;
  const int64_t latent = args.out.cols / heads;
  each_row(args.out.rows, [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto lse = [&](size_t r) { return static_cast<double>(args.lse[r].row(t)[h]); };
      double largest = kNothing;
      for (size_t r = 0; r < args.lse.size(); ++r) largest = std::max(largest, lse(r));
      for (int64_t d = h * latent; d < (h + 1) * latent; ++d) {
        double sum = 0;
        double total = 0;
        for (size_t r = 0; r < args.ctx.size(); ++r) {
          if (lse(r) == kNothing) continue;
          const double weight = std::exp(lse(r) - largest);
          sum += weight * args.ctx[r].row(t)[d];
          total += weight;
        }
        float& out = args.out.row(t)[d];
        if (args.ctx.size() == 1) {
          out = args.ctx.front().row(t)[d];
        } else {
          out = total == 0 ? 0.0F : rounded(sum / total);
        }
      }
    }
  });
}

}  // namespace trireme::ops::reference
