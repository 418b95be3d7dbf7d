#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/numeric.h"
#include "ledger/forms.h"

namespace trireme::model {
namespace {

using checkpoint::CatalogueEntry;
using checkpoint::Group;

// What the projections of a layer read, by number: one gather of rows each when activations move.
enum Input : int64_t { kInput, kNarrow, kNarrowGate, kGate, kMixed, kMlpInput, kHidden, kExpertSum };

class Loader {
 public:
  Loader(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account,
         const layout::RankShare& share)
      : checkpoint_(checkpoint), config_(checkpoint.config()), ops_(ops), account_(account), share_(share) {
    for (CatalogueEntry& entry : checkpoint::catalogue(config_)) {
      if (layout::is_sharded(entry, share) && layout::slice_of(entry, config_, share)) {
        shard_bytes_[entry.layer] += ledger::shard_block_bytes(checkpoint.stored(entry.name), share, ops);
      }
      std::string name = entry.name;
      entries_.emplace(std::move(name), std::move(entry));
    }
  }

  ModelWeights model() {
    const int64_t end = share_.layer_end < 0 ? config_.layers : share_.layer_end;
    ModelWeights w;
    if (share_.layer_begin == 0) w.embedding = table("embed_tokens");
    for (int64_t l = share_.layer_begin; l < end; ++l) w.layers.push_back(layer(l));
    if (end < config_.layers) return w;
    if (config_.residual_block) w.output_score = score("output_attn_res");
    w.norm = vector("norm");
    w.head = head(config_.tied_embeddings ? "embed_tokens" : "lm_head");
    return w;
  }

 private:
  LayerWeights layer(int64_t index) {
    const std::string p = fmt::format("layers.{}.", index);
    LayerWeights w;
    sharded_ = ShardedWeights{};
    if (const auto found = shard_bytes_.find(index); found != shard_bytes_.end()) {
      sharded_.memory = account_.take(ledger::kShardLine, found->second);
    }
    if (config_.residual_block) {
      w.attention_score = score(p + "self_attention_res");
      w.mlp_score = score(p + "mlp_res");
    }
    w.input_norm = vector(p + "input_layernorm");
    w.post_norm = vector(p + "post_attention_layernorm");
    if (config_.kinds[static_cast<size_t>(index)] == checkpoint::LayerKind::kda) {
      w.attention = kda(p + "self_attn.");
    } else {
      w.attention = mla(p + "self_attn.");
    }
    sharded_.attention_bytes = shard_used();
    if (config_.is_moe(index)) {
      w.mlp = moe(p + "block_sparse_moe.");
    } else {
      w.mlp = mlp(p + "mlp.");
    }
    w.sharded = std::move(sharded_);
    return w;
  }

  KdaWeights kda(const std::string& p) {
    const checkpoint::KdaConfig& c = config_.kda;
    KdaWeights w;
    w.q = projection(p + "q_proj", kInput);
    w.k = projection(p + "k_proj", kInput);
    w.v = projection(p + "v_proj", kInput);
    const int64_t part = c.width() / share_.heads.count * c.conv_taps;
    w.conv = Vector(account_.take(ledger::kVectorLine, 3 * part * 4));
    size_t at = 0;
    for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
      fill(p + name, w.conv.values().subspan(at, static_cast<size_t>(part)));
      at += static_cast<size_t>(part);
    }
    w.f_a = matrix(p + "f_a_proj");
    w.f_b = projection(p + "f_b_proj", kNarrow, ops::Output::f32);
    w.a_log = vector(p + "A_log");
    w.dt_bias = vector(p + "dt_bias");
    w.b = matrix(p + "b_proj");
    if (c.full_rank_gate) {
      w.g = projection(p + "g_proj", kInput, ops::Output::f32);
    } else {
      w.g_a = matrix(p + "g_a_proj");
      w.g_b = projection(p + "g_b_proj", kNarrowGate, ops::Output::f32);
    }
    w.o_norm = vector(p + "o_norm");
    w.o = projection(p + "o_proj", kMixed, ops::Output::f32);
    return w;
  }

  MlaWeights mla(const std::string& p) {
    const checkpoint::MlaConfig& c = config_.mla;
    MlaWeights w;
    if (c.q_lora) {
      w.q_a = matrix(p + "q_a_proj");
      w.q_a_norm = vector(p + "q_a_layernorm");
      w.q_b = projection(p + "q_b_proj", kNarrow);
    } else {
      w.q_b = projection(p + "q_proj", kInput);
    }
    w.kv_a = matrix(p + "kv_a_proj_with_mqa");
    w.kv_a_norm = vector(p + "kv_a_layernorm");
    absorb(p + "kv_b_proj", w);
    if (c.output_gate) w.g = projection(p + "g_proj", kGate, ops::Output::f32);
    w.o = projection(p + "o_proj", kMixed, ops::Output::f32);
    return w;
  }

  MlpWeights mlp(const std::string& p) {
    MlpWeights w;
    w.gate = projection(p + "gate_proj", kMlpInput, ops::Output::f32);
    w.up = projection(p + "up_proj", kMlpInput, ops::Output::f32);
    w.down = projection(p + "down_proj", kHidden, ops::Output::f32);
    return w;
  }

  MoeWeights moe(const std::string& p) {
    const checkpoint::MoeConfig& c = config_.moe;
    MoeWeights w;
    w.router = matrix(p + "gate");
    w.bias = vector(p + "gate.e_score_correction_bias");
    if (c.latent) {
      w.latent_down = projection(p + "routed_expert_down_proj", kMlpInput);
      w.latent_up = projection(p + "routed_expert_up_proj", kExpertSum, ops::Output::f32);
      if (c.latent_norm) w.latent_norm = vector(p + "routed_expert_norm");
    }
    const layout::Range mine = layout::range_of(c.experts, share_.experts);
    w.first_expert = mine.begin;
    w.experts.reserve(static_cast<size_t>(mine.size()));
    for (int64_t e = mine.begin; e < mine.end; ++e) {
      const std::string x = fmt::format("{}experts.{}.", p, e);
      w.experts.push_back({matrix(x + "w1"), matrix(x + "w3"), matrix(x + "w2")});
    }
    if (c.shared_inter > 0) w.shared = mlp(p + "shared_experts.");
    return w;
  }

  const CatalogueEntry& entry_of(const std::string& name) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) throw Failure(fmt::format("the model has no tensor {}", name));
    return found->second;
  }

  layout::Slice slice_of(const CatalogueEntry& entry) const {
    const auto slice = layout::slice_of(entry, config_, share_);
    if (!slice) throw Failure(fmt::format("tensor {} does not belong to this rank", entry.name));
    return *slice;
  }

  // Packs a slice of a stored matrix.
  PackedMatrix load(const std::string& name, const layout::Slice& slice, Buffer storage) {
    const WeightView stored = checkpoint_.stored(name);
    const bool all_rows = slice.rows == stored.rows;
    if (all_rows && slice.cols == stored.cols) {
      const WeightView whole = checkpoint_.weight(name);  // the whole tensor is read ahead
      PackedMatrix packed = ops_.pack(whole, std::move(storage));
      checkpoint_.release(whole);
      return packed;
    }
    const WeightView part = all_rows ? stored : rows_of(stored, slice.row_begin, slice.rows);
    checkpoint_.check(name, part);
    PackedMatrix packed;
    if (slice.cols == stored.cols) {
      packed = ops_.pack(part, std::move(storage));
    } else {
      packed = ops_.pack(columns_of(part, slice.col_begin, slice.cols).view, std::move(storage));
    }
    checkpoint_.release(part);
    return packed;
  }

  PackedMatrix matrix(const std::string& name) {
    const CatalogueEntry& entry = entry_of(name);
    const layout::Slice slice = slice_of(entry);
    const WeightFormat format = ledger::slice_format(checkpoint_.stored(name), slice);
    return load(name, slice,
                account_.take(ledger::weight_line(entry.group), ops_.packed_bytes(format, slice.rows, slice.cols)));
  }

  int64_t shard_used() const {
    return sharded_.blocks.empty() ? 0 : sharded_.blocks.back().offset + sharded_.blocks.back().bytes;
  }

  // `input` numbers the rows that it reads within the layer (ShardedWeights::Block).
  Projection projection(const std::string& name, int64_t input, ops::Output output = ops::Output::rounded) {
    const CatalogueEntry& entry = entry_of(name);
    Projection p;
    p.output = output;
    if (!layout::is_sharded(entry, share_)) {
      p.own = matrix(name);
      p.rows = p.own.rows;
      return p;
    }
    const WeightView stored = checkpoint_.stored(name);
    const layout::Slice slice = slice_of(entry);
    const int64_t offset = shard_used();
    const int64_t bytes = ledger::shard_block_bytes(stored, share_, ops_);
    p.own =
        load(name, slice,
             Buffer::borrow(sharded_.memory.data() + offset, ops_.packed_bytes(stored.format, slice.rows, slice.cols)));
    p.rows = stored.rows;
    p.block = static_cast<int64_t>(sharded_.blocks.size());
    sharded_.blocks.push_back({offset, bytes, p.own.format, stored.rows, stored.cols, input, output});
    return p;
  }

  // The rank's vocabulary rows of lm_head, which may be the embedding.
  PackedMatrix head(const std::string& name) {
    const WeightView stored = checkpoint_.stored(name);
    const layout::Range rows = layout::range_of(config_.vocab, share_.vocab);
    return load(name, {rows.begin, rows.size(), 0, stored.cols},
                account_.take(ledger::kHeadLine, ops_.packed_bytes(stored.format, rows.size(), stored.cols)));
  }

  ops::EmbeddingTable table(const std::string& name) {
    const WeightView stored = checkpoint_.stored(name);
    if (stored.format != WeightFormat::bf16 && stored.format != WeightFormat::f16 &&
        stored.format != WeightFormat::f32) {
      throw BadInput(fmt::format("{}: tensor {} is {}; an embedding must be bf16, f16 or f32",
                                 checkpoint_.directory().string(), name, weight_format_name(stored.format)));
    }
    const layout::Slice slice = slice_of(entry_of(name));
    const WeightView view = rows_of(stored, slice.row_begin, slice.rows);
    ops::EmbeddingTable t{
        view.format, view.rows, view.cols,
        account_.take(ledger::weight_line(Group::embedding), weight_bytes(view.format, view.rows, view.cols))};
    std::memcpy(t.storage.data(), view.data.data(), view.data.size());
    checkpoint_.release(view);
    return t;
  }

  // The rank's part of a small tensor. (A_log may be stored padded: the slice knows its true length.)
  void fill(const std::string& name, std::span<float> out) {
    const std::vector<float> values = checkpoint_.floats(name);
    const layout::Slice slice = slice_of(entry_of(name));
    const int64_t begin = slice.row_begin * slice.cols;
    if (slice.rows * slice.cols != static_cast<int64_t>(out.size()) ||
        begin + slice.rows * slice.cols > static_cast<int64_t>(values.size())) {
      throw BadInput(fmt::format("{}: tensor {} has {} elements, the model needs {} from {} on",
                                 checkpoint_.directory().string(), name, values.size(), out.size(), begin));
    }
    std::copy_n(values.begin() + begin, out.size(), out.begin());
  }

  Vector vector(const std::string& name) {
    const layout::Slice slice = slice_of(entry_of(name));
    Vector v(account_.take(ledger::kVectorLine, slice.rows * slice.cols * 4));
    fill(name, v.values());
    return v;
  }

  // The scorer of a residual mix: norm weight times projection, one float32 product.
  Vector score(const std::string& name) {
    Vector v = vector(name + "_norm");
    const std::vector<float> projection = checkpoint_.floats(name + "_proj");
    for (size_t i = 0; i < v.values().size(); ++i) v.values()[i] *= projection[i];
    return v;
  }

  // Head h of kv_b owns nope key rows, then value rows. kc[h] is the key part transposed, vc[h] the value part. Keys of
  // all heads whose queries the rank computes, values of its own heads, which are among them.
  void absorb(const std::string& name, MlaWeights& w) {
    const checkpoint::MlaConfig& c = config_.mla;
    const int64_t query_heads = c.heads / share_.query_heads.count;
    const int64_t own_heads = c.heads / share_.heads.count;
    const int64_t first_own = share_.heads.index * own_heads - share_.query_heads.index * query_heads;
    const int64_t head_rows = c.nope + c.value;
    const WeightView view =
        rows_of(checkpoint_.stored(name), share_.query_heads.index * query_heads * head_rows, query_heads * head_rows);
    checkpoint_.check(name, view);
    std::vector<float> all(static_cast<size_t>(view.rows * view.cols));
    widen(view, all);
    checkpoint_.release(view);
    std::vector<float> keys(static_cast<size_t>(c.kv_lora * c.nope));
    for (int64_t h = 0; h < query_heads; ++h) {
      const float* head = all.data() + h * head_rows * c.kv_lora;
      for (int64_t i = 0; i < c.nope; ++i) {
        for (int64_t j = 0; j < c.kv_lora; ++j) keys[static_cast<size_t>(j * c.nope + i)] = head[i * c.kv_lora + j];
      }
      w.kc.push_back(derived(keys.data(), c.kv_lora, c.nope));
      if (h < first_own || h >= first_own + own_heads) continue;
      w.vc.push_back(derived(head + c.nope * c.kv_lora, c.value, c.kv_lora));
    }
  }

  PackedMatrix derived(const float* values, int64_t rows, int64_t cols) {
    WeightView view;
    view.format = ledger::derived_format(ops_.precision());
    view.rows = rows;
    view.cols = cols;
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
  const layout::RankShare& share_;
  std::unordered_map<std::string, CatalogueEntry> entries_;
  std::map<int64_t, int64_t> shard_bytes_;  // of the rank's blocks, by layer
  ShardedWeights sharded_;                  // of the layer that is being loaded
};

}  // namespace

ModelWeights load_weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account,
                          const layout::RankShare& share) {
  return Loader(checkpoint, ops, account, share).model();
}

}  // namespace trireme::model
