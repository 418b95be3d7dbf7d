// Operations of drafts.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/thread_scratch.h"

namespace trireme::ops::cpu {

void CpuOps::rope(const RopeArgs& args) const {
  const int64_t half = args.dim / 2;
  const bool round = precision() == Precision::bf16;
  std::vector<double> rate(static_cast<size_t>(half));
  for (int64_t j = 0; j < half; ++j) {
    rate[static_cast<size_t>(j)] = std::pow(args.theta, -2.0 * static_cast<double>(j) / static_cast<double>(args.dim));
  }
  pool().parallel_for(
      args.x.rows, std::max<int64_t>(1, 1024 / std::max<int64_t>(1, args.x.cols)), [&](int64_t begin, int64_t end) {
        float* cosine = thread_scratch<ScratchUse::body>(2 * half);
        float* sine = cosine + half;
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t j = 0; j < half; ++j) {
            const double angle =
                static_cast<double>(args.positions[static_cast<size_t>(t)]) * rate[static_cast<size_t>(j)];
            cosine[j] = static_cast<float>(std::cos(angle));
            sine[j] = static_cast<float>(std::sin(angle));
          }
          for (int64_t head = 0; head < args.x.cols; head += args.dim) {
            float* a = args.x.row(t) + head;
            float* b = a + half;
            for (int64_t j = 0; j < half; ++j) {
              const float first = a[j] * cosine[j] - b[j] * sine[j];
              const float second = b[j] * cosine[j] + a[j] * sine[j];
              a[j] = round ? round_to_bf16(first) : first;
              b[j] = round ? round_to_bf16(second) : second;
            }
          }
        }
      });
}

void CpuOps::draft_attention(const DraftAttentionArgs& args) const {
  const int64_t rows = args.q.rows;
  if (rows == 0) return;
  const int64_t context = args.context_k.rows;
  const int64_t total = context + args.block_k.rows;
  const int64_t group = args.q_heads / args.kv_heads;
  // Per key/value head the rows of context and block, one after the other.
  std::vector<const float*> keys(static_cast<size_t>(args.kv_heads * total));
  std::vector<const float*> values(keys.size());
  for (int64_t kv = 0; kv < args.kv_heads; ++kv) {
    for (int64_t j = 0; j < total; ++j) {
      const auto at = static_cast<size_t>(kv * total + j);
      const bool in_context = j < context;
      keys[at] = (in_context ? args.context_k.row(j) : args.block_k.row(j - context)) + kv * args.dim;
      values[at] = (in_context ? args.context_v.row(j) : args.block_v.row(j - context)) + kv * args.dim;
    }
  }
  pool().parallel_for(rows * args.q_heads, 1, [&](int64_t begin, int64_t end) {
    float* scores = thread_scratch<ScratchUse::body>(total + 16);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i % rows;  // rows of a head together: they read the same keys
      const int64_t h = i / rows;
      // The first context row with position > block_position + r - window.
      const int64_t first =
          std::clamp<int64_t>(args.block_position + r - args.window + 1 - args.context_position, 0, context);
      const auto at = static_cast<size_t>(h / group * total + first);
      row_kernels_.draft_head({.q = args.q.row(r) + h * args.dim,
                               .dim = args.dim,
                               .scale = args.scale,
                               .round = precision() == Precision::bf16,
                               .keys = keys.data() + at,
                               .values = values.data() + at,
                               .count = total - first,
                               .scores = scores,
                               .out = args.out.row(r) + h * args.dim});
    }
  });
}

}  // namespace trireme::ops::cpu
