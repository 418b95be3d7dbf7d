#include "model/draft_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "ledger/forms.h"

namespace trireme::model {
namespace {

// A matrix of the draft: its name and shape.
struct Named {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
};

// The matrices of one layer, in the order of DraftLayer's members.
std::vector<Named> layer_matrices(const checkpoint::DraftConfig& c, int64_t layer) {
  const std::string p = fmt::format("layers.{}.", layer);
  const int64_t q = c.q_heads * c.dim;
  return {{p + "self_attn.q_proj.weight", q, c.hidden},
          {p + "self_attn.k_proj.weight", c.kv_width(), c.hidden},
          {p + "self_attn.v_proj.weight", c.kv_width(), c.hidden},
          {p + "self_attn.o_proj.weight", c.hidden, q},
          {p + "mlp.gate_proj.weight", c.inter, c.hidden},
          {p + "mlp.up_proj.weight", c.inter, c.hidden},
          {p + "mlp.down_proj.weight", c.hidden, c.inter}};
}

Named context_projection(const checkpoint::DraftConfig& c) {
  return {"fc.weight", c.hidden, c.hidden * static_cast<int64_t>(c.target_layers.size())};
}

constexpr const char* kMarkovIn = "markov_head.markov_w1.weight";
constexpr const char* kMarkovOut = "markov_head.markov_w2.weight";

class Reader {
 public:
  explicit Reader(const std::filesystem::path& dir) : path_((dir / "model.safetensors").string()), file_(path_) {}

  WeightView matrix(const Named& named) const {
    return view(named.name, {named.rows, named.cols}, named.rows, named.cols);
  }

  std::vector<float> vector(const std::string& name, int64_t size) const {
    std::vector<float> values(static_cast<size_t>(size));
    widen(view(name, {size}, 1, size), values);
    return values;
  }

 private:
  WeightView view(const std::string& name, const std::vector<int64_t>& shape, int64_t rows, int64_t cols) const {
    const checkpoint::TensorInfo* info = nullptr;
    for (const std::string& spelling : {name, "model." + name}) {
      if (const auto it = file_.tensors().find(spelling); it != file_.tensors().end()) info = &it->second;
    }
    if (info == nullptr) throw BadInput(fmt::format("{}: tensor {} is missing", path_, name));
    if (info->shape != shape) {
      throw BadInput(fmt::format("{}: tensor {} has shape [{}]; the config asks for [{}]", path_, name,
                                 fmt::join(info->shape, ", "), fmt::join(shape, ", ")));
    }
    WeightView w{.rows = rows, .cols = cols, .data = file_.bytes(*info), .scales = {}};
    switch (info->dtype) {
      case DType::bf16:
        w.format = WeightFormat::bf16;
        break;
      case DType::f16:
        w.format = WeightFormat::f16;
        break;
      case DType::f32:
        w.format = WeightFormat::f32;
        break;
      default:
        throw BadInput(fmt::format("{}: tensor {} is {}; a draft's weights must be BF16, F16 or F32", path_, name,
                                   dtype_name(info->dtype)));
    }
    return w;
  }

  std::string path_;
  checkpoint::SafetensorsFile file_;
};

}  // namespace

int64_t DraftWeights::planned_bytes(const std::filesystem::path& dir, const ops::Ops& ops) {
  const checkpoint::DraftConfig c = checkpoint::read_draft_config(dir);
  const Reader reader(dir);
  const auto packed = [&](const Named& named) {
    return ops.packed_bytes(reader.matrix(named).format, named.rows, named.cols);
  };
  int64_t bytes = packed(context_projection(c));
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (const Named& named : layer_matrices(c, layer)) bytes += packed(named);
  }
  if (c.dspark) {
    bytes += static_cast<int64_t>(reader.matrix({kMarkovIn, c.vocab, c.markov_rank}).data.size());
    bytes += packed({kMarkovOut, c.vocab, c.markov_rank});
  }
  return bytes;
}

DraftWeights::DraftWeights(const std::filesystem::path& dir, const ops::Ops& ops, ledger::Account& account)
    : config(checkpoint::read_draft_config(dir)) {
  const Reader reader(dir);
  const auto pack = [&](const Named& named) {
    const WeightView view = reader.matrix(named);
    return ops.pack(view, account.take(ledger::kDraftLine, ops.packed_bytes(view.format, view.rows, view.cols)));
  };
  fc = pack(context_projection(config));
  hidden_norm = reader.vector("hidden_norm.weight", config.hidden);
  norm = reader.vector("norm.weight", config.hidden);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    DraftLayer& layer = layers.emplace_back();
    layer.input_norm = reader.vector(p + "input_layernorm.weight", config.hidden);
    layer.post_norm = reader.vector(p + "post_attention_layernorm.weight", config.hidden);
    layer.q_norm = reader.vector(p + "self_attn.q_norm.weight", config.dim);
    layer.k_norm = reader.vector(p + "self_attn.k_norm.weight", config.dim);
    const std::vector<Named> names = layer_matrices(config, i);
    ops::PackedMatrix* const members[] = {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
    for (size_t m = 0; m < names.size(); ++m) *members[m] = pack(names[m]);
  }
  if (!config.dspark) return;
  const Named table{kMarkovIn, config.vocab, config.markov_rank};
  const WeightView view = reader.matrix(table);
  markov_in = {view.format, view.rows, view.cols,
               account.take(ledger::kDraftLine, static_cast<int64_t>(view.data.size()))};
  std::memcpy(markov_in.storage.data(), view.data.data(), view.data.size());
  markov_out = pack({kMarkovOut, config.vocab, config.markov_rank});
}

void norm_heads(const ops::Ops& ops, const std::vector<float>& weight, const checkpoint::DraftConfig& config, Rows x) {
  for (int64_t head = 0; head < x.cols / config.dim; ++head) {
    const Rows own = x.columns(head * config.dim, config.dim);
    ops.rms_norm(own, weight.data(), config.eps, own);
  }
}

}  // namespace trireme::model
