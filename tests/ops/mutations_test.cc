// Every mistake on the specification's list that lives inside one operation or layer: the engine equals an independent
// float64 model of the layer, and that model with the mistake is far from it. The mistakes of the whole model (what
// goes into the residual bank, the final mix, which layers are which, the head) are in tests/model/mutations_test.cc.
#include <gtest/gtest.h>

#include "ops/mutant.h"

namespace trireme::ops::test {
namespace {

// Float32 backends stay below this (measured: 1e-6); a mutant must be ten times as far away. Beta in bfloat16 is the
// closest.
constexpr double kTolerance = 1e-5;
constexpr double kNoticed = 10 * kTolerance;

double error(const Matrix& out, const Vecs& model) {
  double difference = 0;
  double size = 0;
  for (size_t t = 0; t < model.size(); ++t) {
    for (size_t d = 0; d < model[t].size(); ++d) {
      const double o = out.view().row(static_cast<int64_t>(t))[d];
      if (std::isnan(o)) return std::numeric_limits<double>::infinity();
      difference += (o - model[t][d]) * (o - model[t][d]);
      size += model[t][d] * model[t][d];
    }
  }
  return std::sqrt(difference / size);
}

Dense random_dense(int64_t rows, int64_t cols, uint64_t seed, double deviation = 1) {
  return {rows, cols, random_normal(rows * cols, seed, deviation / std::sqrt(static_cast<double>(cols)))};
}

constexpr int64_t kHidden = 48;
constexpr int64_t kRows = 12;

Matrix inputs() { return random_matrix(kRows, kHidden, 1); }

double mxfp4_product(const Ops& ops, Mutation mutation) {
  const StoredWeight w = random_weight(WeightFormat::mxfp4, 40, 64, 3);
  const Matrix x = random_matrix(2, 64, 2);
  Matrix y = poisoned(2, 40);
  ops.linear(x.view(), pack(ops, w), y.view());
  Dense decoded{40, 64, {}};
  for (size_t i = 0; i < 40 * 64; ++i) {
    const auto byte = static_cast<uint8_t>(w.data[i / 2]);
    const bool low = (i % 2 == 0) != (mutation == Mutation::swap_nibbles);
    const int code = low ? byte & 15 : byte >> 4;
    const double magnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const double scale = std::exp2(static_cast<int>(w.scales[i / 32]) - 127);
    decoded.w.push_back(static_cast<float>((code >= 8 ? -1 : 1) * magnitude[code % 8] * scale));
  }
  return error(y, {product(decoded, to_vecs(x.view())[0]), product(decoded, to_vecs(x.view())[1])});
}

// Sources of different sizes, so that normalising them matters, and scores that neither pick one nor weigh all alike.
double residual_mix(const Ops& ops, Mutation mutation) {
  const std::vector<float> score = random_normal(kHidden, 4, 0.2);
  std::vector<Matrix> bank;
  std::vector<ConstRows> entries;
  for (uint64_t i = 0; i < 8; ++i)
    bank.push_back(random_matrix(kRows, kHidden, 5 + i, 0.3 * static_cast<double>(i + 1)));
  for (const Matrix& m : bank) entries.push_back(m.view());
  const Matrix prefix = inputs();
  Matrix y = poisoned(kRows, kHidden);
  ops.residual_mix(entries, prefix.view(), score.data(), 1e-5F, y.view());
  Vecs model;
  for (size_t t = 0; t < kRows; ++t) {
    Vecs sources;
    for (const Matrix& m : bank) sources.push_back(to_vecs(m.view())[t]);
    model.push_back(mutant_mix(sources, to_vecs(prefix.view())[t], score, 1e-5, mutation));
  }
  return error(y, model);
}

double kda(const Ops& ops, Mutation mutation) {
  KdaLayer w;
  w.heads = 3;
  w.dim = 16;
  w.q = random_dense(48, kHidden, 20);
  w.k = random_dense(48, kHidden, 21);
  w.v = random_dense(48, kHidden, 22);
  w.g = random_dense(48, kHidden, 23);
  w.o = random_dense(kHidden, 48, 24);
  w.f_a = random_dense(16, kHidden, 25);
  w.f_b = random_dense(48, 16, 26);
  w.b = random_dense(3, kHidden, 27);
  w.q_conv = random_normal(48 * 4, 28, 0.5);
  w.k_conv = random_normal(48 * 4, 29, 0.5);
  w.v_conv = random_normal(48 * 4, 30, 0.5);
  w.a_log = {-0.6F, 0.5F, 1.8F};
  w.dt_bias = random_uniform(48, 31, -4, 1);
  w.o_norm = random_normal(16, 32, 0.2, 1);

  constexpr int64_t kCut = 7;  // a second call continues from the state of the first
  const Matrix x = inputs();
  KdaState state(w);
  const Matrix first = kda_layer(ops, w, x.view().row_range(0, kCut), state);
  const Matrix second = kda_layer(ops, w, x.view().row_range(kCut, kRows - kCut), state);
  Matrix out(kRows, kHidden);
  std::copy_n(second.data(), (kRows - kCut) * kHidden, std::copy_n(first.data(), kCut * kHidden, out.data()));
  return error(out, mutant_kda(w, to_vecs(x.view()), kCut, mutation));
}

double mla(const Ops& ops, Mutation mutation) {
  MlaLayer w;
  w.heads = 3;
  w.nope = 12;
  w.rope = 8;
  w.value = 16;  // 3 * 16 = kHidden, so that a gate on the wrong side of o_proj has a shape that fits
  w.latent = 24;
  w.latent_eps = 1e-6F;
  w.q_a = random_dense(32, kHidden, 40);
  w.q_b = random_dense(3 * 20, 32, 41, 1.5);
  w.kv_a = random_dense(32, kHidden, 42, 2);
  w.kv_b = random_dense(3 * 28, 24, 43);
  w.g = random_dense(48, kHidden, 44);
  w.o = random_dense(kHidden, 48, 45);
  w.q_norm = random_normal(32, 46, 0.2, 1);
  w.kv_norm = random_normal(24, 47, 0.2, 1);
  const Matrix x = inputs();
  return error(mla_layer(ops, w, x.view()), mutant_mla(w, to_vecs(x.view()), mutation));
}

double mla_shards(const Ops& ops, Mutation mutation) {
  constexpr int64_t kShards = 3;
  constexpr float kScale = 0.25F;
  const Matrix q = inputs();
  const Matrix latents = random_matrix(kRows, kHidden, 48);
  std::vector<Matrix> ctx, lse;
  std::vector<ConstRows> ctx_views, lse_views;
  for (int64_t r = 0; r < kShards; ++r) {
    PagedLatents cache(kRows, kHidden);
    const MlaSegment segment{0, kRows, 0, cache.table};
    ops.store_latent({latents.view(), cache.pages, {&segment, 1}, {r, kShards}});
    ctx.push_back(poisoned(kRows, kHidden));
    lse.push_back(poisoned(kRows, 1));
    ops.mla(
        {1, kHidden, kScale, q.view(), cache.pages, {&segment, 1}, ctx.back().view(), {r, kShards}, lse.back().view()});
  }
  for (const Matrix& m : ctx) ctx_views.push_back(m.view());
  for (const Matrix& m : lse) lse_views.push_back(m.view());
  Matrix out = poisoned(kRows, kHidden);
  ops.merge_contexts({ctx_views, lse_views, out.view()});
  return error(out, mutant_shards(to_vecs(q.view()), to_vecs(latents.view()), kShards, kScale, mutation));
}

ExpertWeights random_expert(int64_t in, int64_t inter, uint64_t seed) {
  // Gates and ups that reach the caps: deviations of 3 and 20.
  return {random_dense(inter, in, seed, 3), random_dense(inter, in, seed + 1, 20), random_dense(in, inter, seed + 2)};
}

double moe(const Ops& ops, bool latent_norm, Mutation mutation) {
  MoeLayer w;
  w.latent_norm = latent_norm;
  w.top_k = 3;
  w.scaling = 2.5F;
  w.router = random_dense(7, kHidden, 60);
  w.down = random_dense(24, kHidden, 61);
  w.up = random_dense(kHidden, 24, 62, 20);  // the routed part weighs about as much as the shared one
  w.bias = random_uniform(7, 63, -0.3, 0.3);
  w.norm = random_normal(24, 64, 0.2, 1);
  for (uint64_t e = 0; e < 7; ++e) w.experts.push_back(random_expert(24, 20, 70 + 10 * e));
  w.shared = random_expert(kHidden, 40, 150);
  const Matrix x = inputs();
  Vecs model;
  for (const Vec& row : to_vecs(x.view())) model.push_back(mutant_moe(w, row, mutation));
  return error(moe_layer(ops, w, x.view()), model);
}

double moe(const Ops& ops, Mutation mutation) { return moe(ops, true, mutation); }

// Without the norm of the aggregate, which hides any factor common to the weights of a token.
double moe_without_norm(const Ops& ops, Mutation mutation) { return moe(ops, false, mutation); }

struct Case {
  Mutation mutation;
  const char* name;
  double (*run)(const Ops&, Mutation);
};

const Case kCases[] = {
    {Mutation::swap_nibbles, "swap_nibbles", mxfp4_product},
    {Mutation::mix_over_normalised_values, "mix_over_normalised_values", residual_mix},
    {Mutation::delta_before_decay, "delta_before_decay", kda},
    {Mutation::output_before_update, "output_before_update", kda},
    {Mutation::beta_in_bf16, "beta_in_bf16", kda},
    {Mutation::gate_as_clamp, "gate_as_clamp", kda},
    {Mutation::a_log_per_channel, "a_log_per_channel", kda},
    {Mutation::conv_taps_reversed, "conv_taps_reversed", kda},
    {Mutation::conv_state_after_silu, "conv_state_after_silu", kda},
    {Mutation::l2_with_mean, "l2_with_mean", kda},
    {Mutation::q_unscaled, "q_unscaled", kda},
    {Mutation::norm_after_gate, "norm_after_gate", kda},
    {Mutation::silu_gate, "silu_gate", kda},
    {Mutation::scale_of_nope_only, "scale_of_nope_only", mla},
    {Mutation::drop_key_part, "drop_key_part", mla},
    {Mutation::norm_key_part, "norm_key_part", mla},
    {Mutation::gate_after_output_projection, "gate_after_output_projection", mla},
    {Mutation::merge_evenly, "merge_evenly", mla_shards},
    {Mutation::lse_of_unscaled_scores, "lse_of_unscaled_scores", mla_shards},
    {Mutation::biased_weights, "biased_weights", moe},
    {Mutation::no_renormalisation, "no_renormalisation", moe_without_norm},
    {Mutation::norm_per_expert, "norm_per_expert", moe},
    {Mutation::shared_through_latent, "shared_through_latent", moe},
    {Mutation::capped_sigmoid, "capped_sigmoid", moe},
    {Mutation::uncapped_up, "uncapped_up", moe},
};

class Mutations : public testing::TestWithParam<Case> {};

TEST_P(Mutations, IsNoticed) {
  for_each_isa(Precision::f32, [](const Ops& ops) {
    const double right = GetParam().run(ops, Mutation::none);
    const double wrong = GetParam().run(ops, GetParam().mutation);
    EXPECT_LT(right, kTolerance);
    EXPECT_GT(wrong, kNoticed);
    if (ops.name() == "reference") {
      RecordProperty("error", std::to_string(right));
      RecordProperty("error_of_mutant", std::to_string(wrong));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(List, Mutations, testing::ValuesIn(kCases),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace trireme::ops::test
