#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/numeric.h"
#include "ledger/forms.h"

namespace trireme::model {
namespace {

using checkpoint::Group;

class Loader {
 public:
  Loader(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account)
      : checkpoint_(checkpoint), config_(checkpoint.config()), ops_(ops), account_(account) {}

  ModelWeights model() {
    ModelWeights w;
    w.embedding = table("embed_tokens");
    for (int64_t l = 0; l < config_.layers; ++l) w.layers.push_back(layer(l));
    if (config_.residual_block) w.output_score = score("output_attn_res");
    w.norm = vector("norm", config_.hidden);
    w.head = matrix(config_.tied_embeddings ? "embed_tokens" : "lm_head", Group::head, config_.vocab, config_.hidden);
    return w;
  }

 private:
  LayerWeights layer(int64_t index) {
    const std::string p = fmt::format("layers.{}.", index);
    LayerWeights w;
    if (config_.residual_block) {
      w.attention_score = score(p + "self_attention_res");
      w.mlp_score = score(p + "mlp_res");
    }
    w.input_norm = vector(p + "input_layernorm", config_.hidden);
    w.post_norm = vector(p + "post_attention_layernorm", config_.hidden);
    if (config_.kinds[static_cast<size_t>(index)] == checkpoint::LayerKind::kda) {
      w.attention = kda(p + "self_attn.");
    } else {
      w.attention = mla(p + "self_attn.");
    }
    if (config_.is_moe(index)) {
      w.mlp = moe(p + "block_sparse_moe.");
    } else {
      w.mlp = mlp(p + "mlp.", Group::dense, config_.dense_inter);
    }
    return w;
  }

  KdaWeights kda(const std::string& p) {
    const checkpoint::KdaConfig& c = config_.kda;
    const int64_t hidden = config_.hidden;
    const int64_t width = c.width();
    KdaWeights w;
    w.q = matrix(p + "q_proj", Group::kda, width, hidden);
    w.k = matrix(p + "k_proj", Group::kda, width, hidden);
    w.v = matrix(p + "v_proj", Group::kda, width, hidden);
    w.conv = Vector(account_.take(ledger::kVectorLine, 3 * width * c.conv_taps * 4));
    const size_t part = static_cast<size_t>(width * c.conv_taps);
    size_t at = 0;
    for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
      fill(p + name, w.conv.values().subspan(at, part));
      at += part;
    }
    w.f_a = matrix(p + "f_a_proj", Group::kda, c.dim, hidden);
    w.f_b = matrix(p + "f_b_proj", Group::kda, width, c.dim);
    w.a_log = vector(p + "A_log", c.heads);
    w.dt_bias = vector(p + "dt_bias", width);
    w.b = matrix(p + "b_proj", Group::kda, c.heads, hidden);
    if (c.full_rank_gate) {
      w.g = matrix(p + "g_proj", Group::kda, width, hidden);
    } else {
      w.g_a = matrix(p + "g_a_proj", Group::kda, c.dim, hidden);
      w.g_b = matrix(p + "g_b_proj", Group::kda, width, c.dim);
    }
    w.o_norm = vector(p + "o_norm", c.dim);
    w.o = matrix(p + "o_proj", Group::kda, hidden, width);
    return w;
  }

  MlaWeights mla(const std::string& p) {
    const checkpoint::MlaConfig& c = config_.mla;
    const int64_t hidden = config_.hidden;
    const int64_t q_width = c.heads * (c.nope + c.rope);
    MlaWeights w;
    if (c.q_lora) {
      w.q_a = matrix(p + "q_a_proj", Group::mla, *c.q_lora, hidden);
      w.q_a_norm = vector(p + "q_a_layernorm", *c.q_lora);
      w.q_b = matrix(p + "q_b_proj", Group::mla, q_width, *c.q_lora);
    } else {
      w.q_b = matrix(p + "q_proj", Group::mla, q_width, hidden);
    }
    w.kv_a = matrix(p + "kv_a_proj_with_mqa", Group::mla, c.cache_width(), hidden);
    w.kv_a_norm = vector(p + "kv_a_layernorm", c.kv_lora);
    absorb(p + "kv_b_proj", w);
    if (c.output_gate) w.g = matrix(p + "g_proj", Group::mla, c.heads * c.value, hidden);
    w.o = matrix(p + "o_proj", Group::mla, hidden, c.heads * c.value);
    return w;
  }

  MlpWeights mlp(const std::string& p, Group group, int64_t inter) {
    MlpWeights w;
    w.gate = matrix(p + "gate_proj", group, inter, config_.hidden);
    w.up = matrix(p + "up_proj", group, inter, config_.hidden);
    w.down = matrix(p + "down_proj", group, config_.hidden, inter);
    return w;
  }

  MoeWeights moe(const std::string& p) {
    const checkpoint::MoeConfig& c = config_.moe;
    const int64_t hidden = config_.hidden;
    const int64_t width = c.latent.value_or(hidden);
    MoeWeights w;
    w.router = matrix(p + "gate", Group::router, c.experts, hidden);
    w.bias = vector(p + "gate.e_score_correction_bias", c.experts);
    if (c.latent) {
      w.latent_down = matrix(p + "routed_expert_down_proj", Group::latent, width, hidden);
      w.latent_up = matrix(p + "routed_expert_up_proj", Group::latent, hidden, width);
      if (c.latent_norm) w.latent_norm = vector(p + "routed_expert_norm", width);
    }
    w.experts.reserve(static_cast<size_t>(c.experts));
    for (int64_t e = 0; e < c.experts; ++e) {
      const std::string x = fmt::format("{}experts.{}.", p, e);
      w.experts.push_back({matrix(x + "w1", Group::experts, c.inter, width),
                           matrix(x + "w3", Group::experts, c.inter, width),
                           matrix(x + "w2", Group::experts, width, c.inter)});
    }
    if (c.shared_inter > 0) w.shared = mlp(p + "shared_experts.", Group::shared, c.shared_inter);
    return w;
  }

  PackedMatrix matrix(const std::string& name, Group group, int64_t rows, int64_t cols) {
    const WeightView view = checkpoint_.weight(name);
    if (view.rows != rows || view.cols != cols) {
      throw BadInput(fmt::format("{}: tensor {} is {}x{}, the model needs {}x{}", checkpoint_.directory().string(),
                                 name, view.rows, view.cols, rows, cols));
    }
    PackedMatrix packed = ops_.pack(
        view, account_.take(ledger::weight_line(group), ops_.packed_bytes(view.format, view.rows, view.cols)));
    checkpoint_.release(view);
    return packed;
  }

  ops::EmbeddingTable table(const std::string& name) {
    const WeightView view = checkpoint_.weight(name);
    if (view.format != WeightFormat::bf16 && view.format != WeightFormat::f16 && view.format != WeightFormat::f32) {
      throw BadInput(fmt::format("{}: tensor {} is {}; an embedding must be bf16, f16 or f32",
                                 checkpoint_.directory().string(), name, weight_format_name(view.format)));
    }
    ops::EmbeddingTable t{
        view.format, view.rows, view.cols,
        account_.take(ledger::weight_line(Group::embedding), weight_bytes(view.format, view.rows, view.cols))};
    std::memcpy(t.storage.data(), view.data.data(), view.data.size());
    checkpoint_.release(view);
    return t;
  }

  // Copies the first out.size() elements of a small tensor (A_log may be stored padded).
  void fill(const std::string& name, std::span<float> out) {
    const std::vector<float> values = checkpoint_.floats(name);
    if (values.size() < out.size()) {
      throw BadInput(fmt::format("{}: tensor {} has {} elements, the model needs {}", checkpoint_.directory().string(),
                                 name, values.size(), out.size()));
    }
    std::copy_n(values.begin(), out.size(), out.begin());
  }

  Vector vector(const std::string& name, int64_t count) {
    Vector v(account_.take(ledger::kVectorLine, count * 4));
    fill(name, v.values());
    return v;
  }

  // The scorer of a residual mix: norm weight times projection, one float32 product.
  Vector score(const std::string& name) {
    Vector v = vector(name + "_norm", config_.hidden);
    std::vector<float> projection(static_cast<size_t>(config_.hidden));
    fill(name + "_proj", projection);
    for (size_t i = 0; i < projection.size(); ++i) v.values()[i] *= projection[i];
    return v;
  }

  // Head h of kv_b owns nope key rows, then value rows. kc[h] is the key part transposed, vc[h] the value part.
  void absorb(const std::string& name, MlaWeights& w) {
    const checkpoint::MlaConfig& c = config_.mla;
    const WeightView view = checkpoint_.weight(name);
    std::vector<float> all(static_cast<size_t>(view.rows * view.cols));
    widen(view, all);
    checkpoint_.release(view);
    std::vector<float> keys(static_cast<size_t>(c.kv_lora * c.nope));
    for (int64_t h = 0; h < c.heads; ++h) {
      const float* head = all.data() + h * (c.nope + c.value) * c.kv_lora;
      for (int64_t i = 0; i < c.nope; ++i) {
        for (int64_t j = 0; j < c.kv_lora; ++j) keys[static_cast<size_t>(j * c.nope + i)] = head[i * c.kv_lora + j];
      }
      w.kc.push_back(derived(keys.data(), c.kv_lora, c.nope));
      w.vc.push_back(derived(head + c.nope * c.kv_lora, c.value, c.kv_lora));
    }
  }

  PackedMatrix derived(const float* values, int64_t rows, int64_t cols) {
    WeightView view{ledger::derived_format(ops_.precision()), rows, cols, {}, {}};
    const std::span<const float> source(values, static_cast<size_t>(rows * cols));
    std::vector<uint16_t> narrow;
    if (view.format == WeightFormat::bf16) {
      narrow.resize(source.size());
      std::transform(source.begin(), source.end(), narrow.begin(), float_to_bf16);
      view.data = std::as_bytes(std::span<const uint16_t>(narrow));
    } else {
      view.data = std::as_bytes(source);
    }
    return ops_.pack(view, account_.take(ledger::kDerivedLine, ops_.packed_bytes(view.format, rows, cols)));
  }

  const checkpoint::Checkpoint& checkpoint_;
  const checkpoint::ModelConfig& config_;
  const ops::Ops& ops_;
  ledger::Account& account_;
};

}  // namespace

ModelWeights load_weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account) {
  return Loader(checkpoint, ops, account).model();
}

}  // namespace trireme::model
