#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <variant>

#include "base/error.h"
#include "model/attention_kda.h"
#include "model/attention_mla.h"
#include "model/mlp.h"
#include "model/pass.h"
#include "model/residual.h"
#include "model/weights.h"

namespace trireme::model {

struct Model::Weights {
  Weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& the_ops, ledger::Account& account)
      : config(checkpoint.config()), ops(the_ops), model(load_weights(checkpoint, the_ops, account)) {}

  checkpoint::ModelConfig config;
  const ops::Ops& ops;
  ModelWeights model;
  std::vector<int64_t> taps;
  std::mutex mutex;  // guards the workspace: one pass at a time
  Workspace workspace;
};

namespace {

[[noreturn]] void refuse(const std::string& what) { throw BadInput("forward pass: " + what); }

void check_segment(const Segment& s, size_t index, const checkpoint::ModelConfig& config) {
  if (s.rows < 1) refuse(fmt::format("segment {} has {} rows, it must have at least 1", index, s.rows));
  if (s.position < 0) refuse(fmt::format("segment {} starts at position {}", index, s.position));
  const int64_t need = (s.position + s.rows + ops::kPageTokens - 1) / ops::kPageTokens;
  const bool has_mla = std::count(config.kinds.begin(), config.kinds.end(), checkpoint::LayerKind::mla) > 0;
  if (has_mla && static_cast<int64_t>(s.pages.size()) < need) {
    refuse(fmt::format("segment {} ends at token {} and has {} pages, it needs {}", index, s.position + s.rows,
                       s.pages.size(), need));
  }
  int64_t last = 0;
  for (const StateCheckpoint& c : s.checkpoints) {
    if (c.rows <= last || c.rows > s.rows) {
      refuse(fmt::format("segment {} of {} rows has a checkpoint after row {}; they must rise from 1", index, s.rows,
                         c.rows));
    }
    last = c.rows;
  }
}

void check(const Batch& batch, const StateViews& states, const checkpoint::ModelConfig& config, bool traced) {
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config.vocab) {
      throw BadInput(fmt::format("token {} is outside the vocabulary of {} entries", token, config.vocab));
    }
  }
  int64_t rows = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    check_segment(batch.segments[i], i, config);
    rows += batch.segments[i].rows;
  }
  if (rows != batch.rows()) refuse(fmt::format("segments have {} rows, the batch has {} tokens", rows, batch.rows()));
  int64_t last = -1;
  for (const int64_t row : batch.logit_rows) {
    if (row <= last || row >= rows)
      refuse(fmt::format("logit row {} of a batch of {} rows; they must rise", row, rows));
    last = row;
  }
  if (states.kda.size() + states.latent.size() != config.kinds.size()) {
    refuse(fmt::format("state views for {} KDA and {} MLA layers, the model has {} layers", states.kda.size(),
                       states.latent.size(), config.kinds.size()));
  }
  if (traced &&
      (batch.segments.size() != 1 || batch.segments.front().position != 0 || !batch.segments.front().commit)) {
    refuse("a trace needs a batch of one committed segment that starts at position 0");
  }
}

std::shared_ptr<ReplayRecord> make_record(const Batch& batch, size_t kda_layers) {
  auto record = std::make_shared<ReplayRecord>();
  for (const Segment& s : batch.segments) {
    record->row_begin.push_back(s.commit ? -1 : record->rows);
    if (!s.commit) record->rows += s.rows;
  }
  if (record->rows == 0) return nullptr;
  record->layers.resize(kda_layers);
  return record;
}

// Row ranges, positions and pages of the batch's segments, as attention takes them.
std::vector<ops::MlaSegment> segments_of(const Batch& batch) {
  std::vector<ops::MlaSegment> segments;
  int64_t row = 0;
  for (const Segment& s : batch.segments) {
    segments.push_back({row, s.rows, s.position, s.pages});
    row += s.rows;
  }
  return segments;
}

Matrix copy_of(ConstRows rows) {
  Matrix copy(rows.rows, rows.cols);
  for (int64_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.cols, copy.view().row(r));
  return copy;
}

// One layer after the other over the stream; taps are caught on the way.
class Layers {
 public:
  Layers(const Pass& pass, const ModelWeights& weights, const std::vector<int64_t>& taps, std::vector<Matrix>& caught)
      : pass_(pass), weights_(weights), taps_(taps), caught_(caught) {
    caught_.resize(taps.size());
  }

  void run(ResidualStream& stream) {
    const Rows mixed = pass_.workspace.rows(stream.prefix().rows, pass_.config.hidden);
    const Rows normed = pass_.workspace.rows(stream.prefix().rows, pass_.config.hidden);
    const Rows result = pass_.workspace.rows(stream.prefix().rows, pass_.config.hidden);
    for (int64_t l = 0; l < pass_.config.layers; ++l) {
      const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
      const ConstRows x = stream.mix(w.attention_score, mixed);
      catch_tap(l - 1, x);
      pass_.trace.stack("attn_mix", x);
      pass_.ops.rms_norm(x, w.input_norm.data(), pass_.config.eps, normed);
      stream.enter_layer(l);
      attention(l, w, normed, result);
      pass_.trace.stack("attn_out", result);
      stream.add(result);
      const ConstRows y = stream.mix(w.mlp_score, mixed);
      pass_.trace.stack("mlp_mix", y);
      pass_.ops.rms_norm(y, w.post_norm.data(), pass_.config.eps, normed);
      mlp(l, w, normed, result);
      pass_.trace.stack("mlp_out", result);
      stream.add(result);
      pass_.trace.stack("hidden", stream.prefix());
    }
  }

  void catch_tap(int64_t layer, ConstRows mixed) {
    for (size_t i = 0; i < taps_.size(); ++i) {
      if (taps_[i] == layer) caught_[i] = copy_of(mixed);
    }
  }

 private:
  void attention(int64_t layer, const LayerWeights& w, ConstRows x, Rows out) {
    if (const auto* kda = std::get_if<KdaWeights>(&w.attention)) {
      pass_.trace.list("kda_layers", layer);
      kda_attention(pass_, *kda, kda_index_++, x, out);
    } else {
      pass_.trace.list("mla_layers", layer);
      mla_attention(pass_, std::get<MlaWeights>(w.attention), mla_index_++, x, out);
    }
  }

  void mlp(int64_t layer, const LayerWeights& w, ConstRows x, Rows out) {
    if (const auto* moe = std::get_if<MoeWeights>(&w.mlp)) {
      pass_.trace.list("moe_layers", layer);
      moe_mlp(pass_, *moe, x, out);
    } else {
      dense_mlp(pass_, std::get<MlpWeights>(w.mlp), x, out);
    }
  }

  const Pass& pass_;
  const ModelWeights& weights_;
  const std::vector<int64_t>& taps_;
  std::vector<Matrix>& caught_;
  int64_t kda_index_ = 0;
  int64_t mla_index_ = 0;
};

// Logits of the wanted rows only: the head is the largest product of a decode step.
Matrix logits_of(const Pass& pass, const ModelWeights& weights, ConstRows mixed) {
  const auto count = static_cast<int64_t>(pass.batch.logit_rows.size());
  Matrix logits(count, pass.config.vocab);
  const Workspace::Scope scope(pass.workspace);
  const Rows chosen = pass.workspace.rows(count, pass.config.hidden);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(mixed.row(pass.batch.logit_rows[static_cast<size_t>(i)]), mixed.cols, chosen.row(i));
  }
  pass.ops.rms_norm(chosen, weights.norm.data(), pass.config.eps, chosen);
  pass.ops.linear(chosen, weights.head, logits.view(), ops::Output::f32);
  return logits;
}

void trace_output(const Pass& pass, const ModelWeights& weights, const ResidualStream& stream, ConstRows mixed) {
  for (const ConstRows& row : stream.bank()) pass.trace.stack("bank", row);
  pass.trace.single("final_mix", mixed);
  const Workspace::Scope scope(pass.workspace);
  const Rows normed = pass.workspace.rows(mixed.rows, mixed.cols);
  pass.ops.rms_norm(mixed, weights.norm.data(), pass.config.eps, normed);
  pass.trace.single("final_norm", normed);
}

}  // namespace

Model::Model(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account)
    : weights_(std::make_unique<Weights>(checkpoint, ops, account)) {}

Model::~Model() = default;

const checkpoint::ModelConfig& Model::config() const { return weights_->config; }
const ops::Ops& Model::ops() const { return weights_->ops; }

void Model::set_taps(std::vector<int64_t> layers) {
  for (const int64_t l : layers) {
    if (l < 0 || l >= weights_->config.layers) {
      throw BadInput(fmt::format("tap layer {} of a model with layers 0 to {}", l, weights_->config.layers - 1));
    }
  }
  weights_->taps = std::move(layers);
}

ForwardOutput Model::forward(const Batch& batch, const StateViews& states, Trace* trace) const {
  Weights& w = *weights_;
  check(batch, states, w.config, trace != nullptr);
  const std::lock_guard lock(w.mutex);
  const Workspace::Scope scope(w.workspace);
  const std::shared_ptr<ReplayRecord> replay = make_record(batch, states.kda.size());
  const Pass pass{w.config, w.ops, batch, states, w.workspace, Recorder(trace), replay.get(), segments_of(batch)};

  ForwardOutput output;
  output.replay = replay;
  const Rows embedding = w.workspace.rows(batch.rows(), w.config.hidden);
  w.ops.embed(batch.tokens, w.model.embedding, embedding);
  pass.trace.single("embedding", embedding);
  ResidualStream stream(pass, embedding);
  Layers layers(pass, w.model, w.taps, output.taps);
  layers.run(stream);

  const bool last_tap = std::find(w.taps.begin(), w.taps.end(), w.config.layers - 1) != w.taps.end();
  if (batch.logit_rows.empty() && !last_tap && trace == nullptr) return output;
  const ConstRows mixed = stream.mix(w.model.output_score, w.workspace.rows(batch.rows(), w.config.hidden));
  layers.catch_tap(w.config.layers - 1, mixed);
  if (trace != nullptr) trace_output(pass, w.model, stream, mixed);
  output.logits = logits_of(pass, w.model, mixed);
  return output;
}

void Model::commit(const Batch& batch, const ReplayRecord& record, std::span<const int64_t> accepted,
                   const StateViews& states) const {
  Weights& w = *weights_;
  if (accepted.size() != batch.segments.size() || record.row_begin.size() != batch.segments.size()) {
    throw BadInput(fmt::format("commit: {} segments, {} accepted counts, a record of {} segments",
                               batch.segments.size(), accepted.size(), record.row_begin.size()));
  }
  for (size_t i = 0; i < accepted.size(); ++i) {
    if (accepted[i] < 0 || accepted[i] > batch.segments[i].rows) {
      throw BadInput(fmt::format("commit: {} rows accepted of a segment of {}", accepted[i], batch.segments[i].rows));
    }
  }
  const std::lock_guard lock(w.mutex);
  const Pass pass{w.config, w.ops, batch, states, w.workspace, Recorder(nullptr)};
  for (size_t l = 0; l < record.layers.size(); ++l) kda_replay(pass, record, static_cast<int64_t>(l), accepted);
}

void Model::embed(std::span<const int32_t> tokens, Rows out) const {
  weights_->ops.embed(tokens, weights_->model.embedding, out);
}

void Model::lm_head(ConstRows x, Rows logits) const {
  weights_->ops.linear(x, weights_->model.head, logits, ops::Output::f32);
}

}  // namespace trireme::model
