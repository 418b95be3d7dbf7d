#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <variant>

#include "base/error.h"
#include "ledger/forms.h"
#include "model/attention_kda.h"
#include "model/attention_mla.h"
#include "model/mlp.h"
#include "model/pass.h"
#include "model/residual.h"
#include "model/row_exchange.h"
#include "model/vocab_parallel.h"
#include "model/weight_shard.h"
#include "model/weights.h"

namespace trireme::model {

struct Model::Weights {
  Weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& the_ops, ledger::Account& account,
          Parallel the_parallel)
      : config(checkpoint.config()),
        local(layout::local_config(config, the_parallel.share)),
        ops(the_ops),
        parallel(std::move(the_parallel)),
        model(load_weights(checkpoint, the_ops, account, parallel.share)) {
    if (parallel.share.layer_end < 0) parallel.share.layer_end = config.layers;
    for (int64_t l = parallel.share.layer_begin; l < parallel.share.layer_end; ++l) {
      ++(config.kinds[static_cast<size_t>(l)] == checkpoint::LayerKind::kda ? kda_layers : mla_layers);
    }
    if (parallel.weights != nullptr) {
      Buffer staging = account.take(ledger::kStagingLine, account.plan().line(ledger::kStagingLine).bytes);
      shard = std::make_unique<WeightShard>(model.layers, ops, parallel, std::move(staging));
    }
    if (parallel.experts != nullptr) side = std::make_unique<comm::Stream>();
  }

  bool first_stage() const { return parallel.share.layer_begin == 0; }
  bool last_stage() const { return parallel.share.layer_end == config.layers; }

  checkpoint::ModelConfig config;
  checkpoint::ModelConfig local;  // heads are the rank's
  const ops::Ops& ops;
  Parallel parallel;
  ModelWeights model;
  int64_t kda_layers = 0;
  int64_t mla_layers = 0;
  std::unique_ptr<WeightShard> shard;
  std::unique_ptr<comm::Stream> side;
  std::vector<int64_t> taps;
  std::mutex mutex;  // guards the workspace: one pass at a time
  Workspace workspace;
};

namespace {

[[noreturn]] void refuse(const std::string& what) { throw BadInput("forward pass: " + what); }

void check_segment(const Segment& s, size_t index, bool has_mla, int64_t page_tokens) {
  if (s.rows < 1) refuse(fmt::format("segment {} has {} rows, it must have at least 1", index, s.rows));
  if (s.position < 0) refuse(fmt::format("segment {} starts at position {}", index, s.position));
  const int64_t need = (s.position + s.rows + page_tokens - 1) / page_tokens;
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

// `states` has views of `kda_layers` and `mla_layers` layers in a fitting model.
void check(const Batch& batch, const StateViews& states, const checkpoint::ModelConfig& config, int64_t kda_layers,
           int64_t mla_layers, int64_t page_tokens, bool traced) {
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config.vocab) {
      throw BadInput(fmt::format("token {} is outside the vocabulary of {} entries", token, config.vocab));
    }
  }
  int64_t rows = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    check_segment(batch.segments[i], i, mla_layers > 0, page_tokens);
    rows += batch.segments[i].rows;
  }
  if (rows != batch.rows()) refuse(fmt::format("segments have {} rows, the batch has {} tokens", rows, batch.rows()));
  int64_t last = -1;
  for (const int64_t row : batch.logit_rows) {
    if (row <= last || row >= rows)
      refuse(fmt::format("logit row {} of a batch of {} rows; they must rise", row, rows));
    last = row;
  }
  if (static_cast<int64_t>(states.kda.size()) != kda_layers ||
      static_cast<int64_t>(states.latent.size()) != mla_layers) {
    refuse(fmt::format("state views for {} KDA and {} MLA layers, the model has {} and {}", states.kda.size(),
                       states.latent.size(), kda_layers, mla_layers));
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
    const layout::RankShare& share = pass_.parallel.share;
    for (int64_t l = share.layer_begin; l < share.layer_end; ++l) {
      const auto index = static_cast<size_t>(l - share.layer_begin);
      const LayerWeights& w = weights_.layers[index];
      if (pass_.shard != nullptr) pass_.shard->enter_layer(index);
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
    over_attention_group(pass_, x, out, [&](ConstRows all, Rows partial) {
      if (const auto* kda = std::get_if<KdaWeights>(&w.attention)) {
        pass_.trace.list("kda_layers", layer);
        kda_attention(pass_, *kda, kda_index_++, all, partial);
      } else {
        pass_.trace.list("mla_layers", layer);
        mla_attention(pass_, std::get<MlaWeights>(w.attention), mla_index_++, all, partial);
      }
    });
  }

  void mlp(int64_t layer, const LayerWeights& w, ConstRows x, Rows out) {
    if (const auto* moe = std::get_if<MoeWeights>(&w.mlp)) {
      pass_.trace.list("moe_layers", layer);
      moe_mlp(pass_, *moe, x, out);
    } else {
      over_attention_group(pass_, x, out, [&](ConstRows all, Rows partial) {
        dense_mlp(pass_, std::get<MlpWeights>(w.mlp), all, partial);
      });
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
  const Workspace::Scope scope(pass.workspace);
  const Rows chosen = pass.workspace.rows(pass.shape.logit_rows, pass.config.hidden);
  int64_t at = 0;
  for (const int64_t row : pass.batch.logit_rows) {
    const int64_t own = row - pass.shape.begin;
    if (own >= 0 && own < pass.shape.rows) copy(mixed.row_range(own, 1), chosen.row_range(at++, 1));
  }
  pass.ops.rms_norm(chosen, weights.norm.data(), pass.config.eps, chosen);
  return vocab_logits(pass, weights.head, chosen);
}

// Raises the block sizes to the largest of the stage, or to what the ranks assume of each other.
void agree_on_blocks(const Parallel& parallel, StepShape& s) {
  if (!parallel.several_batches) return;
  if (parallel.row_bound) {
    if (s.block > *parallel.row_bound) {
      throw BadInput(fmt::format("a step has {} rows a rank, row_bound allows {}", s.block, *parallel.row_bound));
    }
    s.block = s.logit_block = *parallel.row_bound;
    return;
  }
  const std::array<int32_t, 2> mine{static_cast<int32_t>(s.block), static_cast<int32_t>(s.logit_block)};
  std::vector<int32_t> all(2 * static_cast<size_t>(parallel.stage->size()));
  parallel.stage->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); i += 2) {
    s.block = std::max<int64_t>(s.block, all[i]);
    s.logit_block = std::max<int64_t>(s.logit_block, all[i + 1]);
  }
}

// The rank's own block of the batch, and the sizes that the stage's ranks agree on.
StepShape shape_of(const Batch& batch, const Parallel& parallel) {
  const int64_t ranks = size_of(parallel.attention);
  StepShape s;
  s.batch_rows = batch.rows();
  s.group_block = (s.batch_rows + ranks - 1) / ranks;
  s.begin = std::min(rank_in(parallel.attention) * s.group_block, s.batch_rows);
  s.rows = std::min(s.group_block, s.batch_rows - s.begin);
  std::vector<int64_t> wanted(static_cast<size_t>(ranks), 0);
  for (const int64_t row : batch.logit_rows) ++wanted[static_cast<size_t>(row / s.group_block)];
  s.logit_rows = wanted[static_cast<size_t>(rank_in(parallel.attention))];
  s.block = s.group_block;
  s.logit_block = *std::max_element(wanted.begin(), wanted.end());
  agree_on_blocks(parallel, s);
  if (parallel.experts != nullptr && parallel.max_dispatch && s.block > *parallel.max_dispatch) {
    throw BadInput(fmt::format("a step has {} rows on a rank, experts.max_dispatch_tokens allows {}", s.block,
                               *parallel.max_dispatch));
  }
  return s;
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

Model::Model(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account, Parallel parallel)
    : weights_(std::make_unique<Weights>(checkpoint, ops, account, std::move(parallel))) {}

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

ForwardOutput Model::forward(const Batch& batch, const StateViews& states, Trace* trace,
                             const StageStream* before) const {
  Weights& w = *weights_;
  const layout::RankShare& share = w.parallel.share;
  check(batch, states, w.config, w.kda_layers, w.mla_layers, ops::kPageTokens * share.tokens.count, trace != nullptr);
  if (trace != nullptr && (w.parallel.stage != nullptr || !w.first_stage() || !w.last_stage())) {
    refuse("a trace needs the whole model on one rank");
  }
  const std::lock_guard lock(w.mutex);
  const Workspace::Scope scope(w.workspace);
  const std::shared_ptr<ReplayRecord> replay = make_record(batch, states.kda.size());
  const StepShape shape = shape_of(batch, w.parallel);
  ForwardOutput output;
  output.replay = replay;
  if (shape.block == 0) {  // nobody in the stage has rows
    output.logits = Matrix(0, w.config.vocab);
    return output;
  }
  Pass pass{w.local, w.ops, batch, states, w.workspace, Recorder(trace), w.parallel};
  pass.shape = shape;
  pass.side = w.side.get();
  pass.shard = w.shard.get();
  pass.replay = replay.get();
  pass.segments = segments_of(batch);
  if (w.shard) w.shard->begin_step(shape.block);

  const Rows start = w.workspace.rows(shape.rows, w.config.hidden);
  std::vector<ConstRows> bank;
  if (w.first_stage()) {
    const std::span<const int32_t> tokens(batch.tokens);
    embed_rows(pass, w.model.embedding,
               tokens.subspan(static_cast<size_t>(shape.begin), static_cast<size_t>(shape.rows)), start);
    pass.trace.single("embedding", start);
  } else {
    copy(before->prefix.view(), start);
    for (const Matrix& row : before->bank) bank.push_back(row.view());
  }
  ResidualStream stream(pass, start, std::move(bank));
  Layers layers(pass, w.model, w.taps, output.taps);
  layers.run(stream);
  if (!w.last_stage()) {
    output.stream.prefix = copy_of(stream.prefix());
    for (const ConstRows& row : stream.bank()) output.stream.bank.push_back(copy_of(row));
    return output;
  }
  const bool last_tap = std::find(w.taps.begin(), w.taps.end(), w.config.layers - 1) != w.taps.end();
  if (shape.logit_block == 0 && !last_tap && trace == nullptr) return output;
  const ConstRows mixed = stream.mix(w.model.output_score, w.workspace.rows(shape.rows, w.config.hidden));
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
  const Pass pass{w.local, w.ops, batch, states, w.workspace, Recorder(nullptr), w.parallel};
  for (size_t l = 0; l < record.layers.size(); ++l) kda_replay(pass, record, static_cast<int64_t>(l), accepted);
}

void Model::embed(std::span<const int32_t> tokens, Rows out) const {
  weights_->ops.embed(tokens, weights_->model.embedding, out);
}

void Model::lm_head(ConstRows x, Rows logits) const {
  weights_->ops.linear(x, weights_->model.head, logits, ops::Output::f32);
}

}  // namespace trireme::model
