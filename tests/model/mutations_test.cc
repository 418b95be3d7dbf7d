// The whole model once more in float64, with one deliberate mistake at a time, on the random checkpoint tiny-a.
// Unmutated it gives the golden logits; every mistake moves them far beyond the tolerance that golden_test.cc holds the
// engine to. So an engine with one of these mistakes cannot pass there.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "ops/mutant.h"
#include "support/tensors.h"

namespace trireme::mutations {
namespace {

using checkpoint::Checkpoint;
using checkpoint::LayerKind;
using checkpoint::ModelConfig;
using ops::test::Dense;
using ops::test::ExpertWeights;
using ops::test::KdaLayer;
using ops::test::MlaLayer;
using ops::test::MoeLayer;
using ops::test::Mutation;
using ops::test::rms;
using ops::test::Vec;
using ops::test::Vecs;

constexpr double kTolerance = 1e-4;  // of golden_test.cc in float32
constexpr double kNoticed = 10 * kTolerance;

struct Layer {
  std::vector<float> input_norm, post_norm, attention_score, mlp_score;
  KdaLayer kda;
  MlaLayer mla;
  MoeLayer moe;
  ExpertWeights dense;
};

struct Weights {
  ModelConfig config;
  Dense embedding, head;
  std::vector<float> norm, output_score;
  std::vector<Layer> layers;
};

class Loader {
 public:
  Loader(const Checkpoint& from, bool swap_nibbles) : from_(from), swap_nibbles_(swap_nibbles) {}

  Weights load() {
    const ModelConfig& config = from_.config();
    Weights w{config, dense("embed_tokens"), dense("lm_head"), floats("norm"), score("output_attn_res"), {}};
    for (int64_t l = 0; l < config.layers; ++l) w.layers.push_back(layer(config, l));
    return w;
  }

 private:
  std::vector<float> floats(const std::string& name) const { return from_.floats(root_ + name); }

  Dense dense(const std::string& name) const {
    const WeightView view = from_.weight(root_ + name);
    Dense d{view.rows, view.cols, std::vector<float>(static_cast<size_t>(view.rows * view.cols))};
    widen(view, d.w);
    if (!swap_nibbles_ || view.format != WeightFormat::mxfp4) return d;
    for (size_t i = 0; i < d.w.size(); i += 2) std::swap(d.w[i], d.w[i + 1]);
    return d;
  }

  std::vector<float> score(const std::string& name) const {
    std::vector<float> s = floats(name + "_norm");
    const std::vector<float> projection = floats(name + "_proj");
    for (size_t i = 0; i < s.size(); ++i) s[i] *= projection[i];
    return s;
  }

  Layer layer(const ModelConfig& config, int64_t l) {
    Layer layer;
    const std::string root = "layers." + std::to_string(l) + ".";
    root_ = root;
    layer.input_norm = floats("input_layernorm");
    layer.post_norm = floats("post_attention_layernorm");
    layer.attention_score = score("self_attention_res");
    layer.mlp_score = score("mlp_res");
    root_ = root + "self_attn.";
    if (config.kinds[static_cast<size_t>(l)] == LayerKind::kda) {
      layer.kda = kda(config);
    } else {
      layer.mla = mla(config);
    }
    root_ = root + (config.is_moe(l) ? "block_sparse_moe." : "mlp.");
    if (config.is_moe(l)) {
      layer.moe = moe(config);
    } else {
      layer.dense = {dense("gate_proj"), dense("up_proj"), dense("down_proj")};
    }
    root_.clear();
    return layer;
  }

  KdaLayer kda(const ModelConfig& config) const {
    KdaLayer w{config.kda.heads,   config.kda.dim,    config.kda.conv_taps, *config.kda.lower_bound, config.eps,
               dense("q_proj"),    dense("k_proj"),   dense("v_proj"),      dense("g_proj"),         dense("o_proj"),
               dense("f_a_proj"),  dense("f_b_proj"), dense("b_proj"),      floats("q_conv1d"),      floats("k_conv1d"),
               floats("v_conv1d"), floats("A_log"),   floats("dt_bias"),    floats("o_norm")};
    return w;
  }

  MlaLayer mla(const ModelConfig& config) const {
    return {config.mla.heads,        config.mla.nope,         config.mla.rope,
            config.mla.value,        config.mla.kv_lora,      config.latent_eps,
            dense("q_a_proj"),       dense("q_b_proj"),       dense("kv_a_proj_with_mqa"),
            dense("kv_b_proj"),      dense("g_proj"),         dense("o_proj"),
            floats("q_a_layernorm"), floats("kv_a_layernorm")};
  }

  MoeLayer moe(const ModelConfig& config) const {
    MoeLayer w;
    w.top_k = config.moe.top_k;
    w.renormalize = config.moe.renormalize;
    w.scaling = config.moe.scaling;
    w.eps = config.eps;
    w.router = dense("gate");
    w.down = dense("routed_expert_down_proj");
    w.up = dense("routed_expert_up_proj");
    w.bias = floats("gate.e_score_correction_bias");
    w.norm = floats("routed_expert_norm");
    for (int64_t e = 0; e < config.moe.experts; ++e) {
      const std::string root = "experts." + std::to_string(e);
      w.experts.push_back({dense(root + ".w1"), dense(root + ".w3"), dense(root + ".w2")});
    }
    w.shared = {dense("shared_experts.gate_proj"), dense("shared_experts.up_proj"), dense("shared_experts.down_proj")};
    return w;
  }

  const Checkpoint& from_;
  bool swap_nibbles_;
  std::string root_;
};

// One value a row, from what a layer does to each.
template <class Function>
Vecs each(size_t rows, const Function& function) {
  Vecs y;
  for (size_t t = 0; t < rows; ++t) y.push_back(function(t));
  return y;
}

Vecs logits_of(const Weights& w, std::span<const int32_t> tokens, Mutation mutation) {
  const ModelConfig& config = w.config;
  const size_t rows = tokens.size();
  const auto embedded = [&](size_t t) {
    const auto first = w.embedding.w.begin() + tokens[t] * w.embedding.cols;
    return Vec(first, first + w.embedding.cols);
  };
  Vecs prefix = each(rows, embedded);
  std::vector<Vecs> bank;  // by row of the batch
  bank.resize(rows);
  const auto mix = [&](const std::vector<float>& score) {
    return each(rows, [&](size_t t) {
      return bank[t].empty() ? prefix[t] : mutant_mix(bank[t], prefix[t], score, config.eps, mutation);
    });
  };
  for (int64_t l = 0; l < config.layers; ++l) {
    const Layer& layer = w.layers[static_cast<size_t>(l)];
    const Vecs mixed = mix(layer.attention_score);
    const Vecs x = each(rows, [&](size_t t) { return rms(mixed[t], layer.input_norm, config.eps); });
    const bool boundary = l % *config.residual_block == 0;
    for (size_t t = 0; boundary && t < rows; ++t) {
      bank[t].push_back(mutation == Mutation::append_mixed_row ? mixed[t] : prefix[t]);
    }
    const Vecs attention = config.kinds[static_cast<size_t>(l)] == LayerKind::kda
                               ? mutant_kda(layer.kda, x, rows / 2, mutation)
                               : mutant_mla(layer.mla, x, mutation);
    const bool restart = boundary && mutation != Mutation::keep_prefix_at_boundary;
    for (size_t t = 0; t < rows; ++t) prefix[t] = restart ? attention[t] : ops::test::sum(prefix[t], attention[t]);
    const Vecs before_mlp = mix(layer.mlp_score);
    for (size_t t = 0; t < rows; ++t) {
      const Vec y = rms(before_mlp[t], layer.post_norm, config.eps);
      prefix[t] = ops::test::sum(
          prefix[t], config.is_moe(l) ? mutant_moe(layer.moe, y, mutation) : mutant_mlp(layer.dense, {}, y, mutation));
    }
  }
  const Vecs out = mutation == Mutation::omit_final_mix ? prefix : mix(w.output_score);
  const Dense& head = mutation == Mutation::tied_head ? w.embedding : w.head;
  return each(rows, [&](size_t t) { return product(head, rms(out[t], w.norm, config.eps)); });
}

class ModelMutations : public ::testing::Test {
 protected:
  // The first rows of the golden file's 17-token prompt; rows do not depend on later ones.
  static constexpr size_t kRows = 10;

  void SetUp() override {
    const std::filesystem::path folder = trireme::testing::shared_dir() / "golden/tiny-a";
    if (!std::filesystem::exists(folder / "golden.safetensors")) GTEST_SKIP() << "no golden files at " << folder;
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(folder));
    const trireme::testing::TensorFile golden(folder / "golden.safetensors");
    tokens_ = golden.ids("prompt.3.tokens");
    tokens_.resize(kRows);
    golden_ = golden.get("prompt.3.logits");
    mla_layers_ = golden.ids("trace.mla_layers");
  }

  // ||logits - golden|| / ||golden|| of each row, sorted.
  std::vector<double> errors(const Weights& w, Mutation mutation) const {
    const Vecs logits = logits_of(w, tokens_, mutation);
    std::vector<double> errors;
    for (size_t t = 0; t < kRows; ++t) {
      const std::vector<float> row(logits[t].begin(), logits[t].end());
      errors.push_back(trireme::testing::relative_error(row, golden_.row(static_cast<int64_t>(t))));
    }
    std::sort(errors.begin(), errors.end());
    return errors;
  }

  Weights load(bool swap_nibbles = false) const { return Loader(*checkpoint_, swap_nibbles).load(); }
  const ModelConfig& config() const { return checkpoint_->config(); }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<int32_t> tokens_;
  trireme::testing::Tensor golden_;
  std::vector<int32_t> mla_layers_;
};

TEST_F(ModelMutations, TheModelWithoutMistakesIsGolden) { EXPECT_LT(errors(load(), Mutation::none).back(), 2e-6); }

TEST_F(ModelMutations, EveryMistakeMovesTheLogits) {
  struct Case {
    Mutation mutation;
    const char* name;
  };
  // Not here: no_renormalisation, which the norm of the experts' sum undoes in this family (tests/ops/mutations_test.cc
  // sees it, and golden_test.cc compares the router's weights), and swap_nibbles and zero_based_layers, which change
  // the loading.
  const Case cases[] = {
      {Mutation::append_mixed_row, "append_mixed_row"},
      {Mutation::keep_prefix_at_boundary, "keep_prefix_at_boundary"},
      {Mutation::mix_over_normalised_values, "mix_over_normalised_values"},
      {Mutation::omit_final_mix, "omit_final_mix"},
      {Mutation::tied_head, "tied_head"},
      {Mutation::delta_before_decay, "delta_before_decay"},
      {Mutation::output_before_update, "output_before_update"},
      {Mutation::beta_in_bf16, "beta_in_bf16"},
      {Mutation::gate_as_clamp, "gate_as_clamp"},
      {Mutation::a_log_per_channel, "a_log_per_channel"},
      {Mutation::conv_taps_reversed, "conv_taps_reversed"},
      {Mutation::conv_state_after_silu, "conv_state_after_silu"},
      {Mutation::l2_with_mean, "l2_with_mean"},
      {Mutation::q_unscaled, "q_unscaled"},
      {Mutation::norm_after_gate, "norm_after_gate"},
      {Mutation::silu_gate, "silu_gate"},
      {Mutation::scale_of_nope_only, "scale_of_nope_only"},
      {Mutation::drop_key_part, "drop_key_part"},
      {Mutation::norm_key_part, "norm_key_part"},
      {Mutation::gate_after_output_projection, "gate_after_output_projection"},
      {Mutation::biased_weights, "biased_weights"},
      {Mutation::norm_per_expert, "norm_per_expert"},
      {Mutation::shared_through_latent, "shared_through_latent"},
      {Mutation::capped_sigmoid, "capped_sigmoid"},
      {Mutation::uncapped_up, "uncapped_up"},
  };
  const Weights w = load();
  for (const Case& c : cases) {
    const std::vector<double> e = errors(w, c.mutation);
    RecordProperty(c.name, std::to_string(e.back()));
    EXPECT_GT(e.back(), kNoticed) << c.name << ": the worst row";
    EXPECT_GT(e[e.size() / 2], kTolerance) << c.name << ": the median row";
  }
}

TEST_F(ModelMutations, SwappedNibblesMoveTheLogits) { EXPECT_GT(errors(load(true), Mutation::none).front(), kNoticed); }

// full_attn_layers counts from one. Read from zero, the layers differ from the golden ones, and the last is not there
// at all.
TEST_F(ModelMutations, LayersCountFromOne) {
  std::vector<int32_t> read;
  for (size_t l = 0; l < config().kinds.size(); ++l) {
    if (config().kinds[l] == LayerKind::mla) read.push_back(static_cast<int32_t>(l));
  }
  EXPECT_EQ(read, mla_layers_);
  std::vector<int32_t> zero_based = read;
  for (int32_t& l : zero_based) ++l;
  EXPECT_NE(zero_based, mla_layers_);
  EXPECT_EQ(zero_based.back(), config().layers);
  // A layer read as the wrong kind finds none of its tensors.
  EXPECT_FALSE(checkpoint_->has("layers.4.self_attn.kv_b_proj"));
  EXPECT_FALSE(checkpoint_->has("layers.3.self_attn.q_conv1d"));
}

}  // namespace
}  // namespace trireme::mutations
