// Rotary positions and the drafts' block attention.
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {

void ReferenceOps::rope(const RopeArgs& args) const {
  const int64_t half = args.dim / 2;
  each_row(args.x.rows, [&](int64_t t) {
    const auto position = static_cast<double>(args.positions[static_cast<size_t>(t)]);
    for (int64_t head = 0; head < args.x.cols; head += args.dim) {
      float* x = args.x.row(t) + head;
      for (int64_t j = 0; j < half; ++j) {
        const double angle =
            position * std::pow(args.theta, -2.0 * static_cast<double>(j) / static_cast<double>(args.dim));
        const double a = x[j];
        const double b = x[half + j];
        x[j] = rounded(a * std::cos(angle) - b * std::sin(angle));
        x[half + j] = rounded(b * std::cos(angle) + a * std::sin(angle));
      }
    }
  });
}

void ReferenceOps::draft_attention(const DraftAttentionArgs& args) const {
  each_row(args.q.rows * args.q_heads, [&](int64_t task) {
    const int64_t row = task / args.q_heads;
    const int64_t head = task % args.q_heads;
    const int64_t column = head / (args.q_heads / args.kv_heads) * args.dim;
    const float* q = args.q.row(row) + head * args.dim;

    std::vector<const float*> values;
    std::vector<double> p;
    for (int64_t i = 0; i < args.context_k.rows; ++i) {
      if (args.context_position + i <= args.block_position + row - args.window) continue;
      p.push_back(args.scale * dot(q, args.context_k.row(i) + column, args.dim));
      values.push_back(args.context_v.row(i) + column);
    }
    for (int64_t i = 0; i < args.block_k.rows; ++i) {
      p.push_back(args.scale * dot(q, args.block_k.row(i) + column, args.dim));
      values.push_back(args.block_v.row(i) + column);
    }
    softmax(p);
    for (int64_t d = 0; d < args.dim; ++d) {
      double sum = 0;
      for (size_t i = 0; i < p.size(); ++i) sum += p[i] * values[i][d];
      args.out.row(row)[head * args.dim + d] = rounded(sum);
    }
  });
}

}  // namespace trireme::ops::reference
