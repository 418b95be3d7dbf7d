// Norms, residuals, gates and activations: one row at a time, each element from its own row only.
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {

void ReferenceOps::rms_norm(ConstRows x, const float* w, float eps, Rows y) const {
  each_row(x.rows, [&](int64_t t) {
    const double scale = inverse_rms(x.row(t), x.cols, eps);
    for (int64_t d = 0; d < x.cols; ++d)
      y.row(t)[d] = rounded(static_cast<double>(w[d]) * rounded(x.row(t)[d] * scale));
  });
}

void ReferenceOps::residual_mix(std::span<const ConstRows> bank, ConstRows prefix, const float* score, float eps,
                                Rows y) const {
  const int64_t cols = prefix.cols;
  each_row(prefix.rows, [&](int64_t t) {
    std::vector<const float*> sources;
    for (const ConstRows& entry : bank) sources.push_back(entry.row(t));
    sources.push_back(prefix.row(t));

    std::vector<double> a;
    for (const float* v : sources) a.push_back(dot(v, score, cols) * inverse_rms(v, cols, eps));
    softmax(a);
    for (int64_t d = 0; d < cols; ++d) {
      double sum = 0;
      for (size_t i = 0; i < sources.size(); ++i) sum += a[i] * sources[i][d];
      y.row(t)[d] = rounded(sum);
    }
  });
}

void ReferenceOps::add(ConstRows a, ConstRows b, Rows y) const {
  each_row(a.rows, [&](int64_t t) {
    for (int64_t d = 0; d < a.cols; ++d) y.row(t)[d] = rounded(static_cast<double>(a.row(t)[d]) + b.row(t)[d]);
  });
}

void ReferenceOps::sigmoid_gate(ConstRows x, ConstRows gate, Rows y) const {
  each_row(x.rows, [&](int64_t t) {
    for (int64_t d = 0; d < x.cols; ++d) {
      y.row(t)[d] = rounded(static_cast<double>(rounded(x.row(t)[d])) * rounded(sigmoid(gate.row(t)[d])));
    }
  });
}

void ReferenceOps::gated_rms_norm(ConstRows x, const float* w, ConstRows gate, int64_t dim, float eps, Rows y) const {
  each_row(x.rows, [&](int64_t t) {
    for (int64_t head = 0; head < x.cols; head += dim) {
      const double scale = inverse_rms(x.row(t) + head, dim, eps);
      for (int64_t d = 0; d < dim; ++d) {
        y.row(t)[head + d] = rounded(x.row(t)[head + d] * scale * w[d] * sigmoid(gate.row(t)[head + d]));
      }
    }
  });
}

void ReferenceOps::glu(ConstRows gate, ConstRows up, const Glu& glu, Rows y) const {
  each_row(gate.rows, [&](int64_t t) {
    for (int64_t d = 0; d < gate.cols; ++d) y.row(t)[d] = rounded(activate(glu, gate.row(t)[d], up.row(t)[d]));
  });
}

}  // namespace trireme::ops::reference
