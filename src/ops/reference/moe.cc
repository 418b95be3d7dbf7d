// Router and routed experts.
#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {

void ReferenceOps::route(const RouterArgs& args) const {
  const int64_t experts = args.logits.cols;
  each_row(args.logits.rows, [&](int64_t t) {
    std::vector<float> score(static_cast<size_t>(experts));
    std::vector<float> biased(score.size());
    for (size_t e = 0; e < score.size(); ++e) {
      score[e] = static_cast<float>(sigmoid(args.logits.row(t)[e]));
      biased[e] = score[e] + (args.bias == nullptr ? 0.0F : args.bias[e]);
    }
    std::vector<int32_t> order(score.size());
    std::iota(order.begin(), order.end(), 0);
    // Stable, so that equals stay in the order of their numbers. NaN comes after everything.
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float x = biased[static_cast<size_t>(a)];
      const float y = biased[static_cast<size_t>(b)];
      return std::isnan(y) ? !std::isnan(x) : x > y;
    });
    double sum = 0;
    for (int64_t j = 0; j < args.top_k; ++j) sum += score[static_cast<size_t>(order[static_cast<size_t>(j)])];
    const double divisor = args.renormalize ? sum + 1e-20 : 1.0;
    for (int64_t j = 0; j < args.top_k; ++j) {
      const int32_t id = order[static_cast<size_t>(j)];
      args.ids[t * args.top_k + j] = id;
      args.weights[t * args.top_k + j] = static_cast<float>(score[static_cast<size_t>(id)] / divisor * args.scaling);
    }
  });
}

void ReferenceOps::experts(const ExpertsArgs& args) const {
  const int64_t tokens = args.z.rows;
  const int64_t width = args.z.cols;
  Matrix products(tokens * args.top_k, width);  // row t * top_k + j: the j-th expert of token t

  // W x, rounded.
  const auto multiply = [&](const PackedMatrix& w, const std::vector<const float*>& x, const std::vector<float*>& y) {
    std::vector<float> weights(static_cast<size_t>(w.cols));
    for (int64_t r = 0; r < w.rows; ++r) {
      widen_row(w, r, weights.data());
      for (size_t i = 0; i < x.size(); ++i) y[i][r] = rounded(dot(x[i], weights.data(), w.cols));
    }
  };
  const auto rows_of = [](Matrix& m) {
    std::vector<float*> rows;
    for (int64_t i = 0; i < m.rows(); ++i) rows.push_back(m.view().row(i));
    return rows;
  };

  // By expert, so that its weights are decoded once for all tokens that chose it.
  each_row(static_cast<int64_t>(args.experts.size()), [&](int64_t e) {
    std::vector<const float*> inputs;
    std::vector<float*> outputs;
    for (int64_t slot = 0; slot < tokens * args.top_k; ++slot) {
      if (args.ids[slot] != e) continue;
      inputs.push_back(args.z.row(slot / args.top_k));
      outputs.push_back(products.view().row(slot));
    }
    if (inputs.empty()) return;
    const Expert& expert = args.experts[static_cast<size_t>(e)];
    Matrix gate(static_cast<int64_t>(inputs.size()), expert.gate.rows);
    Matrix up(gate.rows(), gate.cols());
    multiply(expert.gate, inputs, rows_of(gate));
    multiply(expert.up, inputs, rows_of(up));
    const float* u = up.data();
    for (float* g = gate.data(); g != gate.data() + gate.rows() * gate.cols(); ++g, ++u) {
      *g = rounded(activate(args.glu, *g, *u));
    }
    std::vector<float*> hidden = rows_of(gate);
    multiply(expert.down, {hidden.begin(), hidden.end()}, outputs);
  });

  combine_experts({products.view(), args.weights, args.top_k, args.y});
}

void ReferenceOps::combine_experts(const CombineArgs& args) const {
  each_row(args.out.rows, [&](int64_t t) {
    for (int64_t d = 0; d < args.out.cols; ++d) {
      double sum = 0;
      for (int64_t slot = t * args.top_k; slot < (t + 1) * args.top_k; ++slot) {
        sum += static_cast<double>(args.weights[slot]) * args.y.row(slot)[d];
      }
      args.out.row(t)[d] = rounded(sum);
    }
  });
}

}  // namespace trireme::ops::reference
