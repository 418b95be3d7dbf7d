#include "checkpoint/catalogue.h"

#include <fmt/format.h>

namespace trireme::checkpoint {
namespace {

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : config_(config) {}

  std::vector<CatalogueEntry> build() {
    const bool bank = config_.residual_block.has_value();
    matrix("embed_tokens", config_.vocab, config_.hidden, Split::vocab_rows, Group::embedding, false);
    for (int64_t layer = 0; layer < config_.layers; ++layer) add_layer(layer);
    layer_ = -1;
    prefix_.clear();
    vector("norm", config_.hidden, Group::norms);
    if (bank) scorer("output_attn_res");
    if (!config_.tied_embeddings) {
      matrix("lm_head", config_.vocab, config_.hidden, Split::vocab_rows, Group::head, true);
    }
    return std::move(entries_);
  }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, Split split, Group group, bool quantizable) {
    entries_.push_back({prefix_ + name, std::move(shape), split, group, quantizable, layer_, 0});
  }
  void matrix(const std::string& name, int64_t out, int64_t in, Split split, Group group, bool quantizable = true) {
    add(name, {out, in}, split, group, quantizable);
  }
  void vector(const std::string& name, int64_t size, Group group, Split split = Split::replicated) {
    add(name, {size}, split, group, false);
  }
  // The pair that scores the sources of a residual mix.
  void scorer(const std::string& name) {
    vector(name + "_norm", config_.hidden, Group::norms);
    matrix(name + "_proj", 1, config_.hidden, Split::replicated, Group::norms, false);
  }

  void add_layer(int64_t layer) {
    layer_ = layer;
    const std::string root = fmt::format("layers.{}.", layer);
    prefix_ = root;
    vector("input_layernorm", config_.hidden, Group::norms);
    vector("post_attention_layernorm", config_.hidden, Group::norms);
    if (config_.residual_block) {
      scorer("self_attention_res");
      scorer("mlp_res");
    }
    prefix_ = root + "self_attn.";
    if (config_.kinds[static_cast<size_t>(layer)] == LayerKind::kda) {
      add_kda();
    } else {
      add_mla();
    }
    prefix_ = root + (config_.is_moe(layer) ? "block_sparse_moe." : "mlp.");
    if (config_.is_moe(layer)) {
      add_moe();
    } else {
      add_mlp("", config_.dense_inter, Group::dense);
    }
  }

  void add_kda() {
    const KdaConfig& kda = config_.kda;
    for (const char* part : {"q", "k", "v"}) {
      matrix(fmt::format("{}_proj", part), kda.width(), config_.hidden, Split::head_rows, Group::kda);
      add(fmt::format("{}_conv1d", part), {kda.width(), 1, kda.conv_taps}, Split::head_rows, Group::kda, false);
    }
    matrix("f_a_proj", kda.dim, config_.hidden, Split::replicated, Group::kda);
    matrix("f_b_proj", kda.width(), kda.dim, Split::head_rows, Group::kda);
    matrix("b_proj", kda.heads, config_.hidden, Split::head_rows, Group::kda);
    vector("A_log", kda.heads, Group::kda, Split::head_rows);
    if (config_.architecture == "KimiK3ForConditionalGeneration")
      entries_.back().padding = (128 - kda.heads % 128) % 128;
    vector("dt_bias", kda.width(), Group::kda, Split::head_rows);
    if (kda.full_rank_gate) {
      matrix("g_proj", kda.width(), config_.hidden, Split::head_rows, Group::kda);
    } else {
      matrix("g_a_proj", kda.dim, config_.hidden, Split::replicated, Group::kda);
      matrix("g_b_proj", kda.width(), kda.dim, Split::head_rows, Group::kda);
    }
    vector("o_norm", kda.dim, Group::kda);
    matrix("o_proj", config_.hidden, kda.width(), Split::head_columns, Group::kda);
  }

  void add_mla() {
    const MlaConfig& mla = config_.mla;
    const int64_t query = mla.heads * (mla.nope + mla.rope);
    if (mla.q_lora) {
      matrix("q_a_proj", *mla.q_lora, config_.hidden, Split::replicated, Group::mla);
      vector("q_a_layernorm", *mla.q_lora, Group::mla);
      matrix("q_b_proj", query, *mla.q_lora, Split::head_rows, Group::mla);
    } else {
      matrix("q_proj", query, config_.hidden, Split::head_rows, Group::mla);
    }
    matrix("kv_a_proj_with_mqa", mla.cache_width(), config_.hidden, Split::replicated, Group::mla);
    vector("kv_a_layernorm", mla.kv_lora, Group::mla);
    matrix("kv_b_proj", mla.heads * (mla.nope + mla.value), mla.kv_lora, Split::head_rows, Group::mla);
    const int64_t width = mla.heads * mla.value;
    if (mla.output_gate) matrix("g_proj", width, config_.hidden, Split::head_rows, Group::mla);
    matrix("o_proj", config_.hidden, width, Split::head_columns, Group::mla);
  }

  void add_mlp(const std::string& root, int64_t inter, Group group) {
    matrix(root + "gate_proj", inter, config_.hidden, Split::inter_rows, group);
    matrix(root + "up_proj", inter, config_.hidden, Split::inter_rows, group);
    matrix(root + "down_proj", config_.hidden, inter, Split::inter_columns, group);
  }

  void add_moe() {
    const MoeConfig& moe = config_.moe;
    const int64_t width = moe.latent.value_or(config_.hidden);
    matrix("gate", moe.experts, config_.hidden, Split::replicated, Group::router, false);
    vector("gate.e_score_correction_bias", moe.experts, Group::router);
    if (moe.latent) {
      matrix("routed_expert_down_proj", width, config_.hidden, Split::replicated, Group::latent);
      matrix("routed_expert_up_proj", config_.hidden, width, Split::replicated, Group::latent);
    }
    if (moe.latent_norm) vector("routed_expert_norm", width, Group::latent);
    if (moe.shared_inter > 0) add_mlp("shared_experts.", moe.shared_inter, Group::shared);
    for (int64_t expert = 0; expert < moe.experts; ++expert) {
      const std::string root = fmt::format("experts.{}.", expert);
      matrix(root + "w1", moe.inter, width, Split::expert, Group::experts);
      matrix(root + "w2", width, moe.inter, Split::expert, Group::experts);
      matrix(root + "w3", moe.inter, width, Split::expert, Group::experts);
    }
  }

  const ModelConfig& config_;
  std::vector<CatalogueEntry> entries_;
  std::string prefix_;
  int64_t layer_ = -1;
};

}  // namespace

std::string_view group_name(Group group) {
  switch (group) {
    case Group::embedding:
      return "embedding";
    case Group::kda:
      return "kda";
    case Group::mla:
      return "mla";
    case Group::dense:
      return "dense";
    case Group::router:
      return "router";
    case Group::latent:
      return "latent";
    case Group::shared:
      return "shared";
    case Group::experts:
      return "experts";
    case Group::norms:
      return "norms";
    case Group::head:
      return "head";
  }
  return "?";
}

int64_t CatalogueEntry::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

std::vector<CatalogueEntry> catalogue(const ModelConfig& config) { return Builder(config).build(); }

}  // namespace trireme::checkpoint
