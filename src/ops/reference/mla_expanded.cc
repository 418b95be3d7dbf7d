#include "ops/reference/mla_expanded.h"

#include <vector>

#include "ops/reference/math.h"

namespace trireme::ops::reference {

void mla_expanded(const MlaExpandedArgs& args) {
  const int64_t tokens = args.q.rows;
  const int64_t expanded = args.nope + args.value;
  for (int64_t h = 0; h < args.heads; ++h) {
    // [k_n | v] of every token.
    std::vector<double> kv(static_cast<size_t>(tokens * expanded));
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t r = 0; r < expanded; ++r) {
        kv[static_cast<size_t>(i * expanded + r)] =
            dot(args.w_kvb.row(h * expanded + r), args.latents.row(i), args.latent);
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const float* q = args.q.row(t) + h * (args.nope + args.rope);
      std::vector<double> p;
      for (int64_t i = 0; i <= t; ++i) {
        double score = dot(q + args.nope, args.latents.row(i) + args.latent, args.rope);
        for (int64_t d = 0; d < args.nope; ++d) score += q[d] * kv[static_cast<size_t>(i * expanded + d)];
        p.push_back(args.scale * score);
      }
      softmax(p);
      for (int64_t d = 0; d < args.value; ++d) {
        double sum = 0;
        for (int64_t i = 0; i <= t; ++i) {
          sum += p[static_cast<size_t>(i)] * kv[static_cast<size_t>(i * expanded + args.nope + d)];
        }
        args.out.row(t)[h * args.value + d] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace trireme::ops::reference
