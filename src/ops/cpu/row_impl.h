// Row kernels (norms, residual mix, gates, activations) for any Vec. Included by row_avx2.cc and row_avx512.cc only.
#pragma once

#include <cstdint>

#include "ops/activation.h"
#include "ops/cpu/vec_math.h"

namespace trireme::ops::cpu {

// Sums of f(i, lanes) over the vectors of a row, in four partial sums that hide the latency of additions. The order
// depends on n only.
template <class V, class F>
float sum_vectors(int64_t n, F&& f) {
  V s0 = V::zero(), s1 = V::zero(), s2 = V::zero(), s3 = V::zero();
  int64_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    s0 = f(i, V::kLanes, s0);
    s1 = f(i + V::kLanes, V::kLanes, s1);
    s2 = f(i + 2 * V::kLanes, V::kLanes, s2);
    s3 = f(i + 3 * V::kLanes, V::kLanes, s3);
  }
  for (; i < n; i += V::kLanes) s0 = f(i, n - i < V::kLanes ? n - i : V::kLanes, s0);
  return sum((s0 + s1) + (s2 + s3));
}

template <class V>
float sum_of_squares(const float* x, int64_t n) {
  return sum_vectors<V>(n, [&](int64_t i, int64_t lanes, V s) {
    const V a = load_lanes<V>(x + i, lanes);
    return fma(a, a, s);
  });
}

template <class V>
float dot(const float* a, const float* b, int64_t n) {
  return sum_vectors<V>(n, [&](int64_t i, int64_t lanes, V s) {
    return fma(load_lanes<V>(a + i, lanes), load_lanes<V>(b + i, lanes), s);
  });
}

// 1 / sqrt(mean(x^2) + eps), in every lane.
template <class V>
V inverse_rms(const float* x, int64_t n, float eps) {
  return V::set(1.0F) / sqrt(V::set(sum_of_squares<V>(x, n) / static_cast<float>(n)) + V::set(eps));
}

template <class V>
struct RowImpl {
  static constexpr int64_t kLanes = V::kLanes;

  static void rms_norm_row(const float* x, const float* w, float eps, int64_t n, bool round, float* y) {
    const V r = inverse_rms<V>(x, n, eps);
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      const V normed = rounded_if(round, load_lanes<V>(x + i, lanes) * r);
      store_lanes(rounded_if(round, load_lanes<V>(w + i, lanes) * normed), y + i, lanes);
    });
  }

  // A first pass over the sources gives their scores, a second the mix.
  static void residual_mix_row(const float* const* sources, int64_t count, const float* score, float eps, int64_t n,
                               bool round, float* weights, float* y) {
    for (int64_t s = 0; s < count; ++s) {
      weights[s] = dot<V>(sources[s], score, n) * lane0(inverse_rms<V>(sources[s], n, eps));
    }
    softmax(weights, count);
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      V mixed = V::set(weights[0]) * load_lanes<V>(sources[0] + i, lanes);
      for (int64_t s = 1; s < count; ++s) mixed = fma(V::set(weights[s]), load_lanes<V>(sources[s] + i, lanes), mixed);
      store_lanes(rounded_if(round, mixed), y + i, lanes);
    });
  }

  static void weighted_mean_row(const float* const* parts, const float* weights, int64_t count, int64_t n, bool round,
                                float* y) {
    float total = weights[0];
    for (int64_t r = 1; r < count; ++r) total += weights[r];
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      V mixed = V::set(weights[0]) * load_lanes<V>(parts[0] + i, lanes);
      for (int64_t r = 1; r < count; ++r) mixed = fma(V::set(weights[r]), load_lanes<V>(parts[r] + i, lanes), mixed);
      store_lanes(rounded_if(round, mixed / V::set(total)), y + i, lanes);
    });
  }

  static void add_row(const float* a, const float* b, int64_t n, bool round, float* y) {
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      store_lanes(rounded_if(round, load_lanes<V>(a + i, lanes) + load_lanes<V>(b + i, lanes)), y + i, lanes);
    });
  }

  static void sigmoid_gate_row(const float* x, const float* gate, int64_t n, bool round, float* y) {
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      const V g = rounded_if(round, vec_sigmoid(load_lanes<V>(gate + i, lanes)));
      store_lanes(rounded_if(round, rounded_if(round, load_lanes<V>(x + i, lanes)) * g), y + i, lanes);
    });
  }

  static void gated_rms_norm_row(const float* x, const float* w, const float* gate, int64_t n, float eps, bool round,
                                 float* y) {
    const V r = inverse_rms<V>(x, n, eps);
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      const V normed = load_lanes<V>(x + i, lanes) * r * load_lanes<V>(w + i, lanes);
      store_lanes(rounded_if(round, normed * vec_sigmoid(load_lanes<V>(gate + i, lanes))), y + i, lanes);
    });
  }

  static void glu_row(const float* gate, const float* up, int64_t n, const Glu& glu, bool round, float* y) {
    if (glu.kind == Glu::Kind::swiglu) {
      for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
        const V g = load_lanes<V>(gate + i, lanes);
        store_lanes(rounded_if(round, g * vec_sigmoid(g) * load_lanes<V>(up + i, lanes)), y + i, lanes);
      });
      return;
    }
    const V gate_scale = V::set(1.0F / glu.beta);
    const V up_scale = V::set(1.0F / glu.linear_beta);
    const V caps = V::set(glu.beta * glu.linear_beta);
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      const V g = load_lanes<V>(gate + i, lanes);
      const V u = load_lanes<V>(up + i, lanes);
      const V capped = caps * vec_tanh_product(g * gate_scale, u * up_scale);
      store_lanes(rounded_if(round, capped * vec_sigmoid(g)), y + i, lanes);
    });
  }

  static void sigmoid(const float* x, int64_t n, float* y) {
    for_vectors<V>(
        n, [&](int64_t i, int64_t lanes) { store_lanes(vec_sigmoid(load_lanes<V>(x + i, lanes)), y + i, lanes); });
  }
  static void softplus(const float* x, int64_t n, float* y) {
    for_vectors<V>(
        n, [&](int64_t i, int64_t lanes) { store_lanes(vec_softplus(load_lanes<V>(x + i, lanes)), y + i, lanes); });
  }
  static void exp(const float* x, int64_t n, float* y) {
    for_vectors<V>(n,
                   [&](int64_t i, int64_t lanes) { store_lanes(vec_exp(load_lanes<V>(x + i, lanes)), y + i, lanes); });
  }
  static void tanh(const float* x, int64_t n, float* y) {
    for_vectors<V>(n,
                   [&](int64_t i, int64_t lanes) { store_lanes(vec_tanh(load_lanes<V>(x + i, lanes)), y + i, lanes); });
  }

  static void to_bf16(const float* x, int64_t n, uint16_t* y) {
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      if (lanes == kLanes) {
        V::load(x + i).store_bf16(y + i);
      } else {
        V::load(x + i, lanes).store_bf16(y + i, lanes);
      }
    });
  }

  // In place over n >= 1 values.
  static void softmax(float* x, int64_t n) {
    float top = x[0];
    for (int64_t i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
    float total = 0;
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      store_lanes(vec_exp(load_lanes<V>(x + i, lanes) - V::set(top)), x + i, lanes);
    });
    for (int64_t i = 0; i < n; ++i) total += x[i];
    for_vectors<V>(
        n, [&](int64_t i, int64_t lanes) { store_lanes(load_lanes<V>(x + i, lanes) / V::set(total), x + i, lanes); });
  }
};

}  // namespace trireme::ops::cpu
