// A second, independent statement of the layers' formulas in float64, with switches that make one deliberate mistake at
// a time. Nothing here calls the engine. Tests show that the engine agrees with the unmutated form and that every
// mutant is noticed.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/layers.h"

namespace trireme::ops::test {

// The mistakes of the specification's list, by name.
enum class Mutation {
  none,
  // products
  swap_nibbles,
  // residual bank and whole model
  append_mixed_row,
  keep_prefix_at_boundary,
  mix_over_normalised_values,
  omit_final_mix,
  zero_based_layers,
  tied_head,
  // KDA
  delta_before_decay,
  output_before_update,
  beta_in_bf16,
  gate_as_clamp,
  a_log_per_channel,
  conv_taps_reversed,
  conv_state_after_silu,
  l2_with_mean,
  q_unscaled,
  norm_after_gate,
  silu_gate,
  // MLA
  scale_of_nope_only,
  drop_key_part,
  norm_key_part,
  gate_after_output_projection,
  merge_evenly,
  lse_of_unscaled_scores,
  // MoE
  biased_weights,
  no_renormalisation,
  norm_per_expert,
  shared_through_latent,
  capped_sigmoid,
  uncapped_up,
};

using Vec = std::vector<double>;
using Vecs = std::vector<Vec>;  // one a row

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }

inline Vec product(const Dense& w, const Vec& x) {
  Vec y(static_cast<size_t>(w.rows));
  for (size_t r = 0; r < y.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += x[c] * w.w[r * x.size() + c];
  }
  return y;
}

inline Vec rms(const Vec& x, double eps) {
  double square = 0;
  for (const double v : x) square += v * v;
  Vec y = x;
  for (double& v : y) v /= std::sqrt(square / static_cast<double>(x.size()) + eps);
  return y;
}

template <class Weights>
Vec rms(const Vec& x, const Weights& w, double eps) {
  Vec y = rms(x, eps);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= w[i];
  return y;
}

inline Vec sum(const Vec& a, const Vec& b) {
  Vec y = a;
  for (size_t i = 0; i < y.size(); ++i) y[i] += b[i];
  return y;
}

inline Vec shares(const Vec& s) {
  const double largest = *std::max_element(s.begin(), s.end());
  Vec p = s;
  for (double& v : p) v = std::exp(v - largest);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= total;
  return p;
}

// Part `i` of x cut into parts of `size`.
inline Vec slice(const Vec& x, int64_t i, int64_t size) { return {x.begin() + i * size, x.begin() + (i + 1) * size}; }

inline Vecs to_vecs(ConstRows m) {
  Vecs v;
  for (int64_t t = 0; t < m.rows; ++t) v.emplace_back(m.row(t), m.row(t) + m.cols);
  return v;
}

inline Vec mutant_mix(const Vecs& bank, const Vec& prefix, const std::vector<float>& score, double eps,
                      Mutation mutation) {
  Vecs sources = bank;
  sources.push_back(prefix);
  Vec s;
  for (const Vec& v : sources) {
    const Vec key = rms(v, score, eps);
    s.push_back(std::accumulate(key.begin(), key.end(), 0.0));
  }
  s = shares(s);
  Vec y(prefix.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const Vec v = mutation == Mutation::mix_over_normalised_values ? rms(sources[i], eps) : sources[i];
    for (size_t d = 0; d < y.size(); ++d) y[d] += s[i] * v[d];
  }
  return y;
}

// ---- KDA

namespace detail {
// Convolution and SiLU of one channel over all rows. Rows from `cut` on ran in a second call, which saw the past
// through a state.
inline Vecs mutant_conv(const Vecs& x, const std::vector<float>& weight, int64_t taps, size_t cut, Mutation mutation) {
  Vecs y = x;
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t c = 0; c < x[t].size(); ++c) {
      double v = 0;
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = static_cast<int64_t>(t) - (taps - 1) + j;
        if (from < 0) continue;
        const auto past = static_cast<size_t>(from);
        const bool activated = mutation == Mutation::conv_state_after_silu && t >= cut && past < cut;
        const int64_t tap = mutation == Mutation::conv_taps_reversed ? taps - 1 - j : j;
        v += (activated ? y[past][c] : x[past][c]) * weight[c * static_cast<size_t>(taps) + static_cast<size_t>(tap)];
      }
      y[t][c] = v * logistic(v);
    }
  }
  return y;
}

inline Vec l2(Vec x, double scale, Mutation mutation) {
  double square = 0;
  for (const double v : x) square += v * v;
  if (mutation == Mutation::l2_with_mean) square /= static_cast<double>(x.size());
  for (double& v : x) v *= scale / std::sqrt(square + 1e-6);
  return x;
}

// One row of one head; s[key][value] moves on.
inline Vec mutant_delta_rule(Vecs& s, const Vec& q, const Vec& k, const Vec& v, const Vec& g, double beta,
                             Mutation mutation) {
  const size_t dim = q.size();
  const auto read = [&](const Vecs& state, const Vec& x) {
    Vec y(dim);
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) y[j] += state[i][j] * x[i];
    }
    return y;
  };
  const Vecs before = s;
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) s[i][j] *= std::exp(g[i]);
  }
  const Vecs decayed = s;
  const Vec u = read(mutation == Mutation::delta_before_decay ? before : decayed, k);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) s[i][j] += k[i] * beta * (v[j] - u[j]);
  }
  return read(mutation == Mutation::output_before_update ? decayed : s, q);
}
}  // namespace detail

inline Vecs mutant_kda(const KdaLayer& w, const Vecs& x, size_t cut, Mutation mutation) {
  const auto project = [&](const Dense& m) {
    Vecs y;
    for (const Vec& row : x) y.push_back(product(m, row));
    return y;
  };
  const Vecs q = detail::mutant_conv(project(w.q), w.q_conv, w.taps, cut, mutation);
  const Vecs k = detail::mutant_conv(project(w.k), w.k_conv, w.taps, cut, mutation);
  const Vecs v = detail::mutant_conv(project(w.v), w.v_conv, w.taps, cut, mutation);
  const double q_scale = mutation == Mutation::q_unscaled ? 1 : 1 / std::sqrt(static_cast<double>(w.dim));
  std::vector<Vecs> state(static_cast<size_t>(w.heads),
                          Vecs(static_cast<size_t>(w.dim), Vec(static_cast<size_t>(w.dim))));
  Vecs out;
  for (size_t t = 0; t < x.size(); ++t) {
    const Vec z = product(w.f_b, product(w.f_a, x[t]));
    const Vec b = product(w.b, x[t]);
    const Vec gate = product(w.g, x[t]);
    Vec y;
    for (int64_t h = 0; h < w.heads; ++h) {
      Vec g;
      for (int64_t d = 0; d < w.dim; ++d) {
        const auto c = static_cast<size_t>(h * w.dim + d);
        const int64_t head = mutation == Mutation::a_log_per_channel ? d % w.heads : h;
        const double rate = std::exp(static_cast<double>(w.a_log[static_cast<size_t>(head)]));
        const double argument = z[c] + w.dt_bias[c];
        g.push_back(mutation == Mutation::gate_as_clamp
                        ? std::max<double>(w.lower_bound, -rate * std::log1p(std::exp(argument)))
                        : w.lower_bound * logistic(rate * argument));
      }
      double beta = logistic(b[static_cast<size_t>(h)]);
      if (mutation == Mutation::beta_in_bf16) beta = round_to_bf16(static_cast<float>(beta));
      Vec o = detail::mutant_delta_rule(
          state[static_cast<size_t>(h)], detail::l2(slice(q[t], h, w.dim), q_scale, mutation),
          detail::l2(slice(k[t], h, w.dim), 1, mutation), slice(v[t], h, w.dim), g, beta, mutation);
      Vec factor = slice(gate, h, w.dim);
      for (double& f : factor) f = mutation == Mutation::silu_gate ? f * logistic(f) : logistic(f);
      if (mutation != Mutation::norm_after_gate) o = rms(o, w.o_norm, w.eps);
      for (size_t d = 0; d < o.size(); ++d) o[d] *= factor[d];
      if (mutation == Mutation::norm_after_gate) o = rms(o, w.o_norm, w.eps);
      y.insert(y.end(), o.begin(), o.end());
    }
    out.push_back(product(w.o, y));
  }
  return out;
}

// ---- MLA, keys and values expanded

inline Vecs mutant_mla(const MlaLayer& w, const Vecs& x, Mutation mutation) {
  const int64_t dim = w.nope + w.rope;
  const double scale = 1 / std::sqrt(static_cast<double>(mutation == Mutation::scale_of_nope_only ? w.nope : dim));
  Vecs expanded;
  Vecs key_parts;
  Vecs out;
  for (const Vec& row : x) {
    const Vec kv = product(w.kv_a, row);
    expanded.push_back(product(w.kv_b, rms(Vec(kv.begin(), kv.begin() + w.latent), w.kv_norm, w.latent_eps)));
    Vec part(kv.begin() + w.latent, kv.end());
    if (mutation == Mutation::norm_key_part) part = rms(part, w.latent_eps);
    if (mutation == Mutation::drop_key_part) std::fill(part.begin(), part.end(), 0.0);
    key_parts.push_back(part);

    const Vec q = product(w.q_b, rms(product(w.q_a, row), w.q_norm, w.latent_eps));
    Vec o;
    for (int64_t h = 0; h < w.heads; ++h) {
      const Vec head = slice(q, h, dim);
      Vec s;
      for (size_t i = 0; i < expanded.size(); ++i) {
        Vec key = slice(expanded[i], h, w.nope + w.value);
        key.resize(static_cast<size_t>(w.nope));
        key.insert(key.end(), key_parts[i].begin(), key_parts[i].end());
        s.push_back(scale * std::inner_product(head.begin(), head.end(), key.begin(), 0.0));
      }
      s = shares(s);
      Vec value(static_cast<size_t>(w.value));
      for (size_t i = 0; i < expanded.size(); ++i) {
        const Vec kv_head = slice(expanded[i], h, w.nope + w.value);
        for (size_t d = 0; d < value.size(); ++d) value[d] += s[i] * kv_head[static_cast<size_t>(w.nope) + d];
      }
      o.insert(o.end(), value.begin(), value.end());
    }
    const Vec gate = product(w.g, row);
    if (mutation == Mutation::gate_after_output_projection) o = product(w.o, o);
    for (size_t d = 0; d < o.size(); ++d) o[d] *= logistic(gate[d % gate.size()]);
    out.push_back(mutation == Mutation::gate_after_output_projection ? o : product(w.o, o));
  }
  return out;
}

// Latents split over `shards` by token mod shards, attended apart and merged. Queries and latents are rows of the same
// width, the values are the latents.
inline Vecs mutant_shards(const Vecs& queries, const Vecs& latents, size_t shards, double scale, Mutation mutation) {
  Vecs out;
  for (size_t t = 0; t < queries.size(); ++t) {
    Vec lse;
    Vecs parts;
    for (size_t r = 0; r < shards && r <= t; ++r) {
      Vec s;
      for (size_t i = r; i <= t; i += shards) {
        s.push_back(scale * std::inner_product(latents[i].begin(), latents[i].end(), queries[t].begin(), 0.0));
      }
      const double unscaled = mutation == Mutation::lse_of_unscaled_scores ? scale : 1;
      double total = 0;
      for (const double v : s) total += std::exp(v / unscaled);
      lse.push_back(mutation == Mutation::merge_evenly ? 0 : std::log(total));
      s = shares(s);
      Vec part(latents[t].size());
      for (size_t i = 0; i < s.size(); ++i) {
        for (size_t d = 0; d < part.size(); ++d) part[d] += s[i] * latents[r + i * shards][d];
      }
      parts.push_back(part);
    }
    lse = shares(lse);
    Vec row(latents[t].size());
    for (size_t r = 0; r < parts.size(); ++r) {
      for (size_t d = 0; d < row.size(); ++d) row[d] += lse[r] * parts[r][d];
    }
    out.push_back(row);
  }
  return out;
}

// ---- MLP and MoE

inline Vec mutant_mlp(const ExpertWeights& w, const Glu& glu, const Vec& x, Mutation mutation) {
  const Vec gate = product(w.gate, x);
  const Vec up = product(w.up, x);
  Vec hidden;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double capped = glu.beta * std::tanh(gate[i] / glu.beta);
    const double s = logistic(mutation == Mutation::capped_sigmoid ? capped : gate[i]);
    const double u = mutation == Mutation::uncapped_up ? up[i] : glu.linear_beta * std::tanh(up[i] / glu.linear_beta);
    hidden.push_back(capped * s * u);
  }
  return product(w.down, hidden);
}

inline Vec mutant_moe(const MoeLayer& w, const Vec& x, Mutation mutation) {
  Vec score = product(w.router, x);
  for (double& s : score) s = logistic(s);
  std::vector<size_t> order(score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score[a] + w.bias[a] > score[b] + w.bias[b]; });
  order.resize(static_cast<size_t>(w.top_k));
  Vec weight;
  for (const size_t e : order) weight.push_back(score[e] + (mutation == Mutation::biased_weights ? w.bias[e] : 0));
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (!w.renormalize || mutation == Mutation::no_renormalisation) total = 1;

  const Vec z = product(w.down, x);
  Vec y(z.size());
  for (size_t j = 0; j < order.size(); ++j) {
    Vec e = mutant_mlp(w.experts[order[j]], w.glu, z, mutation);
    if (mutation == Mutation::norm_per_expert) e = rms(e, w.norm, w.eps);
    for (size_t d = 0; d < y.size(); ++d) y[d] += weight[j] / total * w.scaling * e[d];
  }
  if (w.latent_norm && mutation != Mutation::norm_per_expert) y = rms(y, w.norm, w.eps);
  const Vec shared_input = mutation == Mutation::shared_through_latent ? product(w.up, z) : x;
  return sum(product(w.up, y), mutant_mlp(w.shared, w.glu, shared_input, mutation));
}

}  // namespace trireme::ops::test
