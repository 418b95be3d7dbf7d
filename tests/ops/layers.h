// Whole layers put together from calls of Ops, one sequence from its first token, for tests that compare layers and not
// single operations. The engine's own layers live in model/; these are written from the specification's formulas.
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

#include "ops/ops_compare.h"

namespace trireme::ops::test {

// A matrix of float32 weights, [rows, cols] = [out, in].
struct Dense {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> w;

  PackedMatrix packed(const Ops& ops) const { return pack(ops, f32_weight(rows, cols, w)); }
};

inline Matrix multiply(const Ops& ops, const Dense& w, ConstRows x, Output output = Output::rounded) {
  Matrix y = poisoned(x.rows, w.rows);
  ops.linear(x, w.packed(ops), y.view(), output);
  return y;
}

inline Matrix norm(const Ops& ops, ConstRows x, const std::vector<float>& w, float eps) {
  Matrix y = poisoned(x.rows, x.cols);
  ops.rms_norm(x, w.data(), eps, y.view());
  return y;
}

// ---- KDA

struct KdaLayer {
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t taps = 4;
  float lower_bound = -5;
  float eps = 1e-5F;
  Dense q, k, v, g, o, f_a, f_b, b;
  std::vector<float> q_conv, k_conv, v_conv;
  std::vector<float> a_log, dt_bias, o_norm;

  int64_t width() const { return heads * dim; }
};

struct KdaState {
  explicit KdaState(const KdaLayer& w) : recurrent(static_cast<size_t>(w.heads * w.dim * w.dim)) {
    for (std::vector<float>& c : conv) c.resize(static_cast<size_t>((w.taps - 1) * w.width()));
  }
  std::vector<float> conv[3];
  std::vector<float> recurrent;
};

// The rows continue the sequence whose state is given; the state moves on.
inline Matrix kda_layer(const Ops& ops, const KdaLayer& w, ConstRows x, KdaState& state) {
  const int64_t rows = x.rows;
  const auto convolved = [&](const Dense& projection, const std::vector<float>& taps, std::vector<float>& past) {
    const Matrix in = multiply(ops, projection, x);
    Matrix out = poisoned(rows, w.width());
    const ConvSegment segment{0, rows, past.data(), past.data()};
    ops.short_conv({in.view(), taps.data(), w.taps, {&segment, 1}, out.view()});
    return out;
  };
  Matrix q = convolved(w.q, w.q_conv, state.conv[0]);
  Matrix k = convolved(w.k, w.k_conv, state.conv[1]);
  const Matrix v = convolved(w.v, w.v_conv, state.conv[2]);
  const Matrix z = multiply(ops, w.f_b, multiply(ops, w.f_a, x).view());
  const Matrix b = multiply(ops, w.b, x);
  Matrix log_decay = poisoned(rows, w.width());
  Matrix beta = poisoned(rows, w.heads);
  const KdaGate gate{w.a_log.data(), w.dt_bias.data(), true, w.lower_bound};
  ops.kda_prepare({w.heads, w.dim, gate, q.view(), k.view(), z.view(), b.view(), log_decay.view(), beta.view()});
  Matrix o = poisoned(rows, w.width());
  const KdaSegment segment{0, rows, state.recurrent.data(), state.recurrent.data(), {}};
  const Matrix& q_in = q;
  const Matrix& k_in = k;
  const Matrix& decay_in = log_decay;
  const Matrix& beta_in = beta;
  ops.kda(
      {w.heads, w.dim, q_in.view(), k_in.view(), v.view(), decay_in.view(), beta_in.view(), o.view(), {&segment, 1}});
  const Matrix g = multiply(ops, w.g, x);
  ops.gated_rms_norm(o.view(), w.o_norm.data(), g.view(), w.dim, w.eps, o.view());
  return multiply(ops, w.o, o.view());
}

// ---- MLA

struct MlaLayer {
  int64_t heads = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  int64_t latent = 0;
  float latent_eps = 1e-5F;
  Dense q_a, q_b, kv_a, kv_b, g, o;
  std::vector<float> q_norm, kv_norm;

  int64_t width() const { return latent + rope; }
  // Rows [begin, begin + count) of head h's part of kv_b; its keys come first, then its values.
  Dense kv_rows(int64_t h, int64_t begin, int64_t count) const {
    const auto first = kv_b.w.begin() + (h * (nope + value) + begin) * latent;
    return {count, latent, {first, first + count * latent}};
  }
};

inline Dense transposed(const Dense& m) {
  Dense t{m.cols, m.rows, std::vector<float>(m.w.size())};
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c)
      t.w[static_cast<size_t>(c * m.rows + r)] = m.w[static_cast<size_t>(r * m.cols + c)];
  }
  return t;
}

// Pages of one sequence in float32, handed out in a shuffled order.
struct PagedLatents {
  PagedLatents(int64_t tokens, int64_t width, DType dtype = DType::f32) {
    const int64_t count = (tokens + kPageTokens - 1) / kPageTokens;
    pages.dtype = dtype;
    pages.width = width;
    storage = Buffer((2 * count + 1) * pages.page_bytes());
    pages.base = storage.data();
    for (int64_t i = 0; i < count; ++i) table.push_back(static_cast<int32_t>(2 * (count - i) - 1));
  }
  LatentPages pages;
  Buffer storage;
  std::vector<int32_t> table;
};

// Queries in the latents' space: [ W_kc[h]^T q_n | q_r ] per head.
inline Matrix absorb(const Ops& ops, const MlaLayer& w, const Matrix& q) {
  Matrix absorbed = poisoned(q.rows(), w.heads * w.width());
  for (int64_t h = 0; h < w.heads; ++h) {
    const ConstRows head = q.view().columns(h * (w.nope + w.rope), w.nope + w.rope);
    const Dense keys = transposed(w.kv_rows(h, 0, w.nope));
    ops.linear(head.columns(0, w.nope), keys.packed(ops), absorbed.view().columns(h * w.width(), w.latent));
    for (int64_t t = 0; t < q.rows(); ++t) {
      std::copy_n(head.row(t) + w.nope, w.rope, absorbed.view().row(t) + h * w.width() + w.latent);
    }
  }
  return absorbed;
}

// `latents` receives the cached rows if it is not null.
inline Matrix mla_layer(const Ops& ops, const MlaLayer& w, ConstRows x, Matrix* latents = nullptr) {
  const Matrix q = multiply(ops, w.q_b, norm(ops, multiply(ops, w.q_a, x).view(), w.q_norm, w.latent_eps).view());
  Matrix kv = multiply(ops, w.kv_a, x);
  const Rows c = kv.view().columns(0, w.latent);
  ops.rms_norm(c, w.kv_norm.data(), w.latent_eps, c);
  if (latents != nullptr) *latents = kv;

  PagedLatents cache(x.rows, w.width());
  const MlaSegment segment{0, x.rows, 0, cache.table};
  ops.store_latent({kv.view(), cache.pages, {&segment, 1}});
  const Matrix absorbed = absorb(ops, w, q);
  Matrix ctx = poisoned(x.rows, w.heads * w.latent);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(w.nope + w.rope)));
  ops.mla({w.heads, w.latent, scale, absorbed.view(), cache.pages, {&segment, 1}, ctx.view()});

  Matrix o = poisoned(x.rows, w.heads * w.value);
  for (int64_t h = 0; h < w.heads; ++h) {
    ops.linear(ctx.view().columns(h * w.latent, w.latent), w.kv_rows(h, w.nope, w.value).packed(ops),
               o.view().columns(h * w.value, w.value));
  }
  ops.sigmoid_gate(o.view(), multiply(ops, w.g, x).view(), o.view());
  return multiply(ops, w.o, o.view());
}

// ---- MoE

struct ExpertWeights {
  Dense gate, up, down;
};

struct MoeLayer {
  int64_t top_k = 0;
  bool renormalize = true;
  bool latent_norm = true;
  float scaling = 1;
  float eps = 1e-5F;
  Glu glu;
  Dense router, down, up;
  std::vector<float> bias, norm;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
};

inline Matrix mlp(const Ops& ops, const ExpertWeights& w, const Glu& glu, ConstRows x) {
  Matrix gate = multiply(ops, w.gate, x);
  ops.glu(gate.view(), multiply(ops, w.up, x).view(), glu, gate.view());
  return multiply(ops, w.down, gate.view());
}

inline Matrix moe_layer(const Ops& ops, const MoeLayer& w, ConstRows x) {
  std::vector<int32_t> ids(static_cast<size_t>(x.rows * w.top_k));
  std::vector<float> weights(ids.size());
  const Matrix logits = multiply(ops, w.router, x, Output::f32);
  ops.route({logits.view(), w.bias.data(), w.top_k, w.renormalize, w.scaling, ids.data(), weights.data()});

  std::vector<Expert> experts;
  for (const ExpertWeights& e : w.experts)
    experts.push_back({e.gate.packed(ops), e.up.packed(ops), e.down.packed(ops)});
  const Matrix z = multiply(ops, w.down, x);
  Matrix y = poisoned(x.rows, w.down.rows);
  ops.experts({z.view(), ids.data(), weights.data(), w.top_k, experts, w.glu, y.view()});
  if (w.latent_norm) ops.rms_norm(y.view(), w.norm.data(), w.eps, y.view());
  Matrix m = multiply(ops, w.up, y.view());
  ops.add(m.view(), mlp(ops, w.shared, w.glu, x).view(), m.view());
  return m;
}

}  // namespace trireme::ops::test
