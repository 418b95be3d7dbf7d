// Formulas that several reference operations share, in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/activation.h"
#include "ops/linear.h"

namespace trireme::ops::reference {

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
// log(1 + e^x) without overflow.
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

inline double activate(const Glu& glu, double gate, double up) {
  if (glu.kind == Glu::Kind::swiglu) return silu(gate) * up;
  const double beta = glu.beta;
  const double linear_beta = glu.linear_beta;
  return beta * std::tanh(gate / beta) * sigmoid(gate) * linear_beta * std::tanh(up / linear_beta);
}

inline double dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// 1 / sqrt(mean(x^2) + eps) of one row.
inline double inverse_rms(const float* x, int64_t count, double eps) {
  return 1.0 / std::sqrt(dot(x, x, count) / static_cast<double>(count) + eps);
}

// Scores to weights that sum to one.
inline void softmax(std::vector<double>& s) {
  double largest = s.front();
  for (const double v : s) largest = std::max(largest, v);
  double sum = 0;
  for (double& v : s) sum += v = std::exp(v - largest);
  for (double& v : s) v /= sum;
}

// Row `row` of a packed matrix, widened to float32.
void widen_row(const PackedMatrix& w, int64_t row, float* out);

}  // namespace trireme::ops::reference
