#include "model/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "ledger/forms.h"
#include "model/draft_weights.h"

namespace trireme::model {
namespace {

// The index of the largest value, the first among equals.
int32_t argmax(const float* values, int64_t count) {
  return static_cast<int32_t>(std::max_element(values, values + count) - values);
}

// Forgets all but the last `keep` rows so that `incoming` more fit.
void slide(DraftContext& context, int64_t keep, int64_t incoming, int64_t width) {
  if (context.rows + incoming <= context.capacity) return;
  const int64_t kept = std::min({context.rows, keep, context.capacity - incoming});
  const int64_t dropped = context.rows - kept;
  for (const auto* buffers : {&context.keys, &context.values}) {
    for (float* rows : *buffers) {
      std::memmove(rows, rows + dropped * width, static_cast<size_t>(kept * width) * sizeof(float));
    }
  }
  context.first_position += dropped;
  context.rows = kept;
}

std::vector<int64_t> positions_from(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = first + i;
  return positions;
}

// Attention of every request's block of `rows` rows over its own context, in one layer. The result replaces q.
void attend(const ops::Ops& ops, const checkpoint::DraftConfig& c, size_t layer,
            std::span<const DraftContext* const> contexts, int64_t rows, Rows q, ConstRows k, ConstRows v) {
  const int64_t width = c.kv_width();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * rows;
    const DraftContext& context = *contexts[i];
    const Rows own = q.row_range(begin, rows);
    ops.draft_attention({.q_heads = c.q_heads,
                         .kv_heads = c.kv_heads,
                         .dim = c.dim,
                         .scale = 1.0F / std::sqrt(static_cast<float>(c.dim)),
                         .window = c.windows[layer],
                         .context_position = context.first_position,
                         .block_position = context.first_position + context.rows,
                         .q = own,
                         .context_k = {context.keys[layer], context.rows, width, width},
                         .context_v = {context.values[layer], context.rows, width, width},
                         .block_k = k.row_range(begin, rows),
                         .block_v = v.row_range(begin, rows),
                         .out = own});
  }
}

}  // namespace

Draft::Draft(const std::filesystem::path& dir, Model& target, ledger::Account& account)
    : target_(target), weights_(std::make_unique<DraftWeights>(dir, target.ops(), account)) {
  const checkpoint::DraftConfig& c = weights_->config;
  const checkpoint::ModelConfig& t = target.config();
  if (c.hidden != t.hidden || c.vocab != t.vocab) {
    throw BadInput(fmt::format("draft {}: hidden_size {} and vocab_size {} must be the target's, {} and {}",
                               dir.string(), c.hidden, c.vocab, t.hidden, t.vocab));
  }
  if (c.target_depth.value_or(t.layers) != t.layers) {
    throw BadInput(fmt::format("draft {}: num_target_layers is {}, but the target has {} layers", dir.string(),
                               *c.target_depth, t.layers));
  }
  if (c.target_layers.back() >= t.layers) {
    throw BadInput(fmt::format("draft {}: it taps layer {}, but the target has layers 0 to {}", dir.string(),
                               c.target_layers.back(), t.layers - 1));
  }
  target.set_taps(c.target_layers);
}

Draft::~Draft() = default;

std::vector<ledger::Line> Draft::plan(const std::filesystem::path& dir, const ops::Ops& ops, int64_t requests) {
  const checkpoint::DraftConfig c = checkpoint::read_draft_config(dir);
  const int64_t per_request = c.layers * 2 * context_capacity(c) * c.kv_width() * static_cast<int64_t>(sizeof(float));
  return {{ledger::kDraftLine, DraftWeights::planned_bytes(dir, ops),
           "the matrices of the draft as packed (norms are a few vectors beside them)"},
          {ledger::kDraftWindowLine, requests * per_request,
           fmt::format("{} requests x {} layers x 2 (keys, values) x {} rows x {} values x 4 bytes", requests, c.layers,
                       context_capacity(c), c.kv_width())}};
}

const checkpoint::DraftConfig& Draft::config() const { return weights_->config; }

void Draft::add_context(std::span<const ConstRows> taps, DraftContext& context) const {
  const DraftWeights& w = *weights_;
  const ops::Ops& ops = target_.ops();
  int64_t rows = taps.front().rows;
  // More rows than a window are of no use: start with the last ones.
  const int64_t skipped = std::max<int64_t>(0, rows - w.config.max_window());
  rows -= skipped;
  if (skipped > 0) {
    context.first_position += context.rows + skipped;
    context.rows = 0;
  }
  slide(context, w.config.max_window(), rows, w.config.kv_width());

  const int64_t hidden = w.config.hidden;
  Matrix joined(rows, hidden * static_cast<int64_t>(taps.size()));
  for (int64_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < taps.size(); ++i) {
      std::memcpy(joined.view().row(r) + static_cast<int64_t>(i) * hidden, taps[i].row(skipped + r),
                  static_cast<size_t>(hidden) * sizeof(float));
    }
  }
  Matrix projected(rows, hidden);
  ops.linear(joined.view(), w.fc, projected.view());
  ops.rms_norm(projected.view(), w.hidden_norm.data(), w.config.eps, projected.view());
  const std::vector<int64_t> positions = positions_from(context.first_position + context.rows, rows);
  for (size_t layer = 0; layer < w.layers.size(); ++layer) {
    const int64_t width = w.config.kv_width();
    const Rows keys{context.keys[layer] + context.rows * width, rows, width, width};
    const Rows values{context.values[layer] + context.rows * width, rows, width, width};
    ops.linear(projected.view(), w.layers[layer].k, keys);
    norm_heads(ops, w.layers[layer].k_norm, w.config, keys);
    ops.rope({keys, w.config.dim, w.config.rope_theta, positions});
    ops.linear(projected.view(), w.layers[layer].v, values);
  }
  context.rows += rows;
}

Matrix Draft::block_forward(std::span<const int32_t> anchors, std::span<const DraftContext* const> contexts,
                            int64_t rows) const {
  const DraftWeights& w = *weights_;
  const ops::Ops& ops = target_.ops();
  const int64_t total = rows * static_cast<int64_t>(anchors.size());
  const int64_t q_width = w.config.q_heads * w.config.dim;
  const int64_t kv_width = w.config.kv_width();
  std::vector<int32_t> tokens(static_cast<size_t>(total), static_cast<int32_t>(w.config.mask_token));
  std::vector<int64_t> positions;
  for (size_t i = 0; i < anchors.size(); ++i) {
    tokens[i * static_cast<size_t>(rows)] = anchors[i];
    const std::vector<int64_t> own = positions_from(contexts[i]->first_position + contexts[i]->rows, rows);
    positions.insert(positions.end(), own.begin(), own.end());
  }
  Matrix x(total, w.config.hidden), h(total, w.config.hidden), q(total, q_width), k(total, kv_width),
      v(total, kv_width);
  Matrix gate(total, w.config.inter), up(total, w.config.inter);
  target_.embed(tokens, x.view());
  for (size_t layer = 0; layer < w.layers.size(); ++layer) {
    const DraftLayer& l = w.layers[layer];
    ops.rms_norm(x.view(), l.input_norm.data(), w.config.eps, h.view());
    ops.linear(h.view(), l.q, q.view());
    ops.linear(h.view(), l.k, k.view());
    ops.linear(h.view(), l.v, v.view());
    norm_heads(ops, l.q_norm, w.config, q.view());
    norm_heads(ops, l.k_norm, w.config, k.view());
    ops.rope({q.view(), w.config.dim, w.config.rope_theta, positions});
    ops.rope({k.view(), w.config.dim, w.config.rope_theta, positions});
    attend(ops, w.config, layer, contexts, rows, q.view(), k.view(), v.view());
    ops.linear(q.view(), l.o, h.view());
    ops.add(x.view(), h.view(), x.view());
    ops.rms_norm(x.view(), l.post_norm.data(), w.config.eps, h.view());
    ops.linear(h.view(), l.gate, gate.view());
    ops.linear(h.view(), l.up, up.view());
    ops.glu(gate.view(), up.view(), {.kind = ops::Glu::Kind::swiglu}, gate.view());
    ops.linear(gate.view(), l.down, h.view());
    ops.add(x.view(), h.view(), x.view());
  }
  ops.rms_norm(x.view(), w.norm.data(), w.config.eps, x.view());
  return x;
}

// DSpark: left to right, logits of row j plus the Markov bias W2 W1[previous token].
std::vector<int32_t> Draft::markov_chain(int32_t anchor, ConstRows logits) const {
  const DraftWeights& w = *weights_;
  Matrix bias(1, w.config.vocab);
  Matrix row(1, w.config.markov_rank);
  std::vector<int32_t> drafts;
  int32_t previous = anchor;
  for (int64_t j = 0; j < logits.rows; ++j) {
    target_.ops().embed({&previous, 1}, w.markov_in, row.view());
    target_.ops().linear(row.view(), w.markov_out, bias.view(), ops::Output::f32);
    for (int64_t i = 0; i < w.config.vocab; ++i) bias.data()[i] += logits.row(j)[i];
    previous = argmax(bias.data(), w.config.vocab);
    drafts.push_back(previous);
  }
  return drafts;
}

std::vector<std::vector<int32_t>> Draft::propose(std::span<const int32_t> anchors,
                                                 std::span<const DraftContext* const> contexts, int64_t gamma) const {
  const checkpoint::DraftConfig& c = weights_->config;
  const int64_t rows = c.dspark ? gamma : gamma + 1;
  Matrix y = block_forward(anchors, contexts, rows);
  Matrix logits(y.rows(), c.vocab);
  target_.lm_head(y.view(), logits.view());
  std::vector<std::vector<int32_t>> drafts(anchors.size());
  for (size_t i = 0; i < anchors.size(); ++i) {
    const ConstRows own = ConstRows(logits.view()).row_range(static_cast<int64_t>(i) * rows, rows);
    if (c.dspark) {
      drafts[i] = markov_chain(anchors[i], own);
      continue;
    }
    // Row 0, the anchor, predicts nothing.
    for (int64_t j = 1; j < rows; ++j) drafts[i].push_back(argmax(own.row(j), c.vocab));
  }
  return drafts;
}

}  // namespace trireme::model
