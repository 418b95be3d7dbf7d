// Third-party inputs, weights and outputs of every operation (../shared/fixtures/kimi-k3-in-c, made by another
// project's PyTorch reference), run through the Ops interface of every backend in f32 precision.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "ops/layers.h"

namespace trireme::ops::test {
namespace {

using nlohmann::json;

std::filesystem::path folder() { return std::filesystem::path(TRIREME_SOURCE_DIR) / "../shared/fixtures/kimi-k3-in-c"; }

json load(const std::string& name) {
  std::ifstream in(folder() / name);
  return json::parse(in);
}

class Fixtures : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder() / "ops/MANIFEST.json"))
      GTEST_SKIP() << "no third-party fixtures at " << folder();
    const json tolerance = load("ops/MANIFEST.json")["tolerance"];
    absolute_ = tolerance["fp32_abs"];
    relative_ = tolerance["fp32_rel"];
  }

  // The manifest's tolerance for every element: |out - want| <= fp32_abs + fp32_rel |want|; plus `noise`, see MoeLayer.
  void expect_close(std::span<const float> out, const json& want, const char* what, double noise = 0) const {
    const std::vector<double> values = want["data"];
    ASSERT_EQ(out.size(), values.size()) << what;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = std::fabs(out[i] - values[i]) / (absolute_ + relative_ * std::fabs(values[i]) + noise);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
    EXPECT_LE(worst, 1.0) << what << ": the worst element is off by this many tolerances";
  }
  void expect_close(const Matrix& out, const json& want, const char* what) const {
    expect_close(span_of(out), want, what);
  }

 private:
  double absolute_ = 0;
  double relative_ = 0;
};

std::vector<float> floats(const json& tensor) { return tensor["data"]; }

Matrix matrix(const json& tensor, int64_t cols) {
  const std::vector<float> values = floats(tensor);
  Matrix m(static_cast<int64_t>(values.size()) / cols, cols);
  std::copy(values.begin(), values.end(), m.data());
  return m;
}

Dense dense(const json& tensor) { return {tensor["shape"][0], tensor["shape"][1], floats(tensor)}; }

// A tensor's key: the stand-alone fixtures write "q_proj", the decoder layers "self_attn_q_proj_weight".
const json& tensor(const json& f, const std::string& prefix, const std::string& name) {
  if (f.contains(prefix + name + "_weight")) return f[prefix + name + "_weight"];
  return f.at(prefix + name);
}

KdaLayer kda_weights(const json& f, const std::string& prefix, bool layer) {
  const auto get = [&](const char* name) -> const json& { return tensor(f, prefix, name); };
  KdaLayer w;
  w.dim = 16;
  w.heads = get("A_log")["shape"][0];
  w.q = dense(get("q_proj"));
  w.k = dense(get("k_proj"));
  w.v = dense(get("v_proj"));
  w.g = dense(get("g_proj"));
  w.o = dense(get("o_proj"));
  w.f_a = dense(get(layer ? "f_a_proj" : "f_a"));
  w.f_b = dense(get(layer ? "f_b_proj" : "f_b"));
  w.b = dense(get("b_proj"));
  w.q_conv = floats(get(layer ? "q_conv1d" : "q_conv"));
  w.k_conv = floats(get(layer ? "k_conv1d" : "k_conv"));
  w.v_conv = floats(get(layer ? "v_conv1d" : "v_conv"));
  w.a_log = floats(get("A_log"));
  w.dt_bias = floats(get("dt_bias"));
  w.o_norm = floats(get("o_norm"));
  return w;
}

MlaLayer mla_weights(const json& f, const std::string& prefix) {
  const auto get = [&](const char* name) -> const json& { return tensor(f, prefix, name); };
  MlaLayer w;
  w.heads = 4;
  w.nope = 24;
  w.rope = 8;
  w.value = 16;
  w.latent = 32;
  w.q_a = dense(get("q_a_proj"));
  w.q_b = dense(get("q_b_proj"));
  w.kv_a = dense(get("kv_a_proj_with_mqa"));
  w.kv_b = dense(get("kv_b_proj"));
  w.g = dense(get("g_proj"));
  w.o = dense(get("o_proj"));
  w.q_norm = floats(get("q_a_layernorm"));
  w.kv_norm = floats(get("kv_a_layernorm"));
  return w;
}

MoeLayer moe_weights(const json& f, const std::string& prefix) {
  const auto get = [&](const std::string& name) -> const json& { return tensor(f, prefix, name); };
  const auto expert = [&](const std::string& name) {
    return ExpertWeights{dense(get(name + "_w1")), dense(get(name + "_w3")), dense(get(name + "_w2"))};
  };
  MoeLayer w;
  w.top_k = 2;
  w.router = dense(get("gate"));
  w.down = dense(get("down"));
  w.up = dense(get("up"));
  w.bias = floats(get("e_score_correction_bias"));
  w.norm = floats(get("norm"));
  for (int e = 0; e < 8; ++e) w.experts.push_back(expert("experts_" + std::to_string(e)));
  w.shared = expert("shared");
  return w;
}

TEST_F(Fixtures, RmsNorm) {
  const json f = load("ops/rmsnorm.json");
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    expect_close(norm(ops, matrix(f["in"], 128).view(), floats(f["weight"]), f["eps"]), f["out"], "out");
  });
}

TEST_F(Fixtures, SituGlu) {
  const json f = load("ops/situ_glu.json");
  const Matrix in = matrix(f["in"], 16);
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Matrix out = poisoned(in.rows(), 8);
    ops.glu(in.view().columns(0, 8), in.view().columns(8, 8), {Glu::Kind::situ, f["beta"], f["linear_beta"]},
            out.view());
    expect_close(out, f["out"], "out");
  });
}

TEST_F(Fixtures, ShortConv) {
  const json f = load("ops/shortconv.json");
  const Matrix in = matrix(f["in"], 64);
  const Matrix next = matrix(f["in_next"], 64);
  const std::vector<float> weight = floats(f["weight"]);
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    std::vector<float> state(3 * 64);
    Matrix out = poisoned(in.rows(), 64);
    ConvSegment segment{0, in.rows(), nullptr, state.data()};
    ops.short_conv({in.view(), weight.data(), 4, {&segment, 1}, out.view()});
    expect_close(out, f["out"], "out");
    // Theirs is [channel][age], ours [age][channel].
    const Dense theirs = transposed({3, 64, state});
    expect_close(theirs.w, f["state_after"], "state");
    Matrix out_next = poisoned(1, 64);
    segment = {0, 1, state.data(), state.data()};
    ops.short_conv({next.view(), weight.data(), 4, {&segment, 1}, out_next.view()});
    expect_close(out_next, f["out_next"], "next");
  });
}

TEST_F(Fixtures, KdaDecay) {
  const json f = load("ops/kda_decay.json");
  const Matrix z = matrix(f["z"], 64);
  const std::vector<float> a_log = floats(f["A_log"]);
  const std::vector<float> dt_bias = floats(f["dt_bias"]);
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Matrix q = random_matrix(4, 64, 1);
    Matrix k = random_matrix(4, 64, 2);
    const Matrix b = random_matrix(4, 4, 3);
    Matrix g = poisoned(4, 64);
    Matrix beta = poisoned(4, 4);
    const KdaGate gate{a_log.data(), dt_bias.data(), true, f["lower_bound"]};
    ops.kda_prepare({4, 16, gate, q.view(), k.view(), z.view(), b.view(), g.view(), beta.view()});
    expect_close(g, f["g"], "g");
    for (float* v = g.data(); v != g.data() + 4 * 64; ++v) *v = std::exp(*v);
    expect_close(g, f["alpha"], "alpha");
  });
}

void run_recurrence(const Ops& ops, const json& f, Matrix& out, std::vector<float>& state) {
  Matrix q = matrix(f["q"], 64);
  Matrix decay = matrix(f["alpha"], 64);
  for (float* v = q.data(); v != q.data() + q.rows() * 64; ++v) *v *= f["q_scale"].get<float>();
  for (float* v = decay.data(); v != decay.data() + decay.rows() * 64; ++v) *v = std::log(*v);
  const Matrix k = matrix(f["k"], 64);
  const Matrix v = matrix(f["v"], 64);
  const Matrix beta = matrix(f["beta"], 4);
  const KdaSegment segment{0, q.rows(), nullptr, state.data(), {}};
  out = poisoned(q.rows(), 64);
  ops.kda({4, 16, q.view(), k.view(), v.view(), decay.view(), beta.view(), out.view(), {&segment, 1}});
}

TEST_F(Fixtures, KdaRecurrence) {
  for (const char* name : {"ops/kda_recur1.json", "ops/kda_recur8.json"}) {
    SCOPED_TRACE(name);
    const json f = load(name);
    for_each_isa(Precision::f32, [&](const Ops& ops) {
      Matrix out;
      std::vector<float> state(4 * 16 * 16);
      run_recurrence(ops, f, out, state);
      expect_close(out, f["out"], "out");
      expect_close(state, f["state_out"], "state");
    });
  }
}

TEST_F(Fixtures, KdaLayer) {
  for (const char* name : {"ops/kda_layer1.json", "ops/kda_layer8.json"}) {
    SCOPED_TRACE(name);
    const json f = load(name);
    const KdaLayer w = kda_weights(f, "", false);
    for_each_isa(Precision::f32, [&](const Ops& ops) {
      KdaState state(w);
      expect_close(kda_layer(ops, w, matrix(f["in"], 128).view(), state), f["out"], "out");
      expect_close(state.recurrent, f["state_out"], "state");
    });
  }
}

TEST_F(Fixtures, Router) {
  const json f = load("ops/router.json");
  const Matrix in = matrix(f["in"], 128);
  const Dense gate = dense(f["gate_weight"]);
  const std::vector<float> bias = floats(f["bias"]);
  const std::vector<double> want_ids = f["topk_idx"]["data"];
  const std::vector<double> want = f["topk_weight"]["data"];
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const Matrix logits = multiply(ops, gate, in.view(), Output::f32);
    std::vector<int32_t> ids(12, -1);
    std::vector<float> weights(12);
    ops.route({logits.view(), bias.data(), 2, true, 1.0F, ids.data(), weights.data()});
    // The fixture does not order the experts of a row by score, so match them by number.
    for (size_t row = 0; row < 6; ++row) {
      for (size_t j = 0; j < 2; ++j) {
        const size_t at = 2 * row + (ids[2 * row + j] == want_ids[2 * row] ? 0 : 1);
        EXPECT_EQ(ids[2 * row + j], want_ids[at]) << "row " << row;
        EXPECT_NEAR(weights[2 * row + j], want[at], 1e-5 + 1e-4 * want[at]) << "row " << row;
      }
      EXPECT_NE(ids[2 * row], ids[2 * row + 1]);
    }
  });
}

std::vector<float> folded(const json& norm_weight, const json& projection) {
  std::vector<float> score = floats(norm_weight);
  const std::vector<float> p = floats(projection);
  for (size_t i = 0; i < score.size(); ++i) score[i] *= p[i];
  return score;
}

TEST_F(Fixtures, ResidualMix) {
  const json f = load("ops/attnres.json");
  const Matrix prefix = matrix(f["prefix_sum"], 128);
  const Matrix bank = matrix(f["block_residual"], 8 * 128);  // [token][entry][d]
  const std::vector<float> score = folded(f["norm_weight"], f["proj_weight"]);
  std::vector<ConstRows> entries;
  for (int64_t i = 0; i < 8; ++i) entries.push_back(bank.view().columns(i * 128, 128));
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Matrix out = poisoned(4, 128);
    ops.residual_mix(entries, prefix.view(), score.data(), f["eps"], out.view());
    expect_close(out, f["out"], "out");
  });
}

TEST_F(Fixtures, MlaLayer) {
  const json f = load("ops/mla.json");
  const MlaLayer w = mla_weights(f, "");
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Matrix latents;
    expect_close(mla_layer(ops, w, matrix(f["in"], 128).view(), &latents), f["out"], "out");
    std::vector<float> c, k;
    for (int64_t t = 0; t < latents.rows(); ++t) {
      c.insert(c.end(), latents.view().row(t), latents.view().row(t) + 32);
      k.insert(k.end(), latents.view().row(t) + 32, latents.view().row(t) + 40);
    }
    expect_close(c, f["kv_latent"], "latent");
    expect_close(k, f["k_rope"], "unrotated key");
  });
}

// The one fixture whose own float32 rounding reaches the manifest's tolerance: outputs go up to 178, and a few near
// 0.02 are what remains of sums of such terms. Exact arithmetic (float64) misses it by 1.15 tolerances at one element
// of 384, and plain float32 sums in another order by up to 2.5. So every element may also be off by two float32
// roundings of the largest output, which only matters for those few; and as a whole the output must agree to 1e-6.
TEST_F(Fixtures, MoeLayer) {
  const json f = load("ops/moe.json");
  const MoeLayer w = moe_weights(f, "");
  const std::vector<float> want = floats(f["out"]);
  const double largest = std::fabs(
      *std::max_element(want.begin(), want.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const Matrix out = moe_layer(ops, w, matrix(f["in"], 128).view());
    expect_close(span_of(out), f["out"], "out", 0x1p-23 * largest);
    EXPECT_LT(relative_error(span_of(out), want), 1e-6);
  });
}

// One decoder layer with its residual bank; the layer's number says whether a block begins.
class DecoderLayer : public Fixtures {
 protected:
  void run(const Ops& ops, const json& f) {
    const int64_t layer = f["layer_idx"];
    Matrix bank_in = matrix(f["block_residual_in"], 2 * 128);
    std::vector<ConstRows> bank;
    for (int64_t i = 0; i < 2; ++i) bank.push_back(bank_in.view().columns(i * 128, 128));
    const Matrix in = matrix(f["in"], 128);

    Matrix x = mixed(ops, f, "self_attention_res", bank, in);
    const bool boundary = layer % f["attn_res_block_size"].get<int64_t>() == 0;
    if (boundary) bank.push_back(in.view());
    x = norm(ops, x.view(), floats(f["input_layernorm_weight"]), 1e-5F);
    Matrix prefix;
    if (f["is_mla"]) {
      prefix = mla_layer(ops, mla_weights(f, "self_attn_"), x.view());
    } else {
      const KdaLayer w = kda_weights(f, "self_attn_", true);
      KdaState state(w);
      prefix = kda_layer(ops, w, x.view(), state);
    }
    if (!boundary) ops.add(in.view(), prefix.view(), prefix.view());
    x = mixed(ops, f, "mlp_res", bank, prefix);
    x = norm(ops, x.view(), floats(f["post_attention_layernorm_weight"]), 1e-5F);
    ops.add(prefix.view(), moe_layer(ops, moe_weights(f, "mlp_"), x.view()).view(), prefix.view());
    expect_close(prefix, f["out"], "out");

    std::vector<float> bank_out;
    for (int64_t t = 0; t < in.rows(); ++t) {
      for (const ConstRows& entry : bank) bank_out.insert(bank_out.end(), entry.row(t), entry.row(t) + 128);
    }
    expect_close(bank_out, f["block_residual_out"], "bank");
  }

 private:
  static Matrix mixed(const Ops& ops, const json& f, const std::string& which, std::span<const ConstRows> bank,
                      const Matrix& prefix) {
    const std::vector<float> score = folded(f[which + "_norm_weight"], f[which + "_proj_weight"]);
    Matrix y = poisoned(prefix.rows(), prefix.cols());
    ops.residual_mix(bank, prefix.view(), score.data(), 1e-5F, y.view());
    return y;
  }
};

TEST_F(DecoderLayer, Kda) {
  const json f = load("ops/layer_kda.json");
  for_each_isa(Precision::f32, [&](const Ops& ops) { run(ops, f); });
}

TEST_F(DecoderLayer, MlaAtABlockStart) {
  const json f = load("ops/layer_mla.json");
  for_each_isa(Precision::f32, [&](const Ops& ops) { run(ops, f); });
}

// Released expert bytes with their decoded values: exact, and through a product with unit vectors in every backend.
TEST_F(Fixtures, ReleasedMxfp4) {
  const json f = load("mxfp4.json");
  const std::vector<uint8_t> packed = f["packed"]["data"];
  const std::vector<uint8_t> scales = f["scales"]["data"];
  const std::vector<float> want = f["expected"]["data"];
  const int64_t rows = f["rows"];
  const int64_t cols = f["logical_width"];
  const WeightView view{WeightFormat::mxfp4, rows, cols, std::as_bytes(std::span(packed)),
                        std::as_bytes(std::span(scales))};
  std::vector<float> got(want.size());
  widen(view, got);
  EXPECT_EQ(got, want);

  const std::vector<float> swapped = f["expected_swapped_nibbles"]["first64"];
  EXPECT_NE(std::vector<float>(got.begin(), got.begin() + 64), swapped);

  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const PackedMatrix w = ops.pack(view, Buffer(ops.packed_bytes(WeightFormat::mxfp4, rows, cols)));
    for (const int64_t column : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{1000}, cols - 1}) {
      Matrix unit(1, cols);
      unit.data()[column] = 1;
      Matrix y = poisoned(1, rows);
      ops.linear(unit.view(), w, y.view());
      for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(y.data()[r], want[static_cast<size_t>(r * cols + column)]);
    }
  });
}

// Every fixture of the folder is used by a test above; a new one must not go unnoticed.
TEST_F(Fixtures, NoneIsForgotten) {
  const std::set<std::string> used = {"MANIFEST.json",   "attnres.json",    "kda_decay.json",  "kda_layer1.json",
                                      "kda_layer8.json", "kda_recur1.json", "kda_recur8.json", "layer_kda.json",
                                      "layer_mla.json",  "mla.json",        "moe.json",        "rmsnorm.json",
                                      "router.json",     "shortconv.json",  "situ_glu.json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder() / "ops")) {
    EXPECT_TRUE(used.contains(entry.path().filename().string())) << entry.path();
  }
}

}  // namespace
}  // namespace trireme::ops::test
