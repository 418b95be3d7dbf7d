#include "model/attention_kda.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "model/projection.h"

namespace trireme::model {
namespace {

float* recurrent_state(const KdaLayerView& view, int32_t slot) { return view.recurrent + slot * view.recurrent_stride; }
float* conv_state(const KdaLayerView& view, int32_t slot) { return view.conv + slot * view.conv_stride; }

// The convolution state after the first `rows` rows of a segment: the last `history` inputs, from `before` (null:
// zeros) and `raw`. `after` may be `before`: older rows move towards the front only.
void shift_conv_state(const float* before, ConstRows raw, int64_t rows, int64_t history, float* after) {
  const int64_t channels = raw.cols;
  for (int64_t j = 0; j < history; ++j) {
    const int64_t source = rows - history + j;  // row of the segment; negative ones are in `before`
    float* to = after + j * channels;
    if (source >= 0) {
      std::copy_n(raw.row(source), channels, to);
    } else if (before != nullptr) {
      std::copy_n(before + (source + history) * channels, channels, to);
    } else {
      std::fill_n(to, channels, 0.0F);
    }
  }
}

void project(const Pass& pass, const KdaWeights& w, ConstRows x, Rows raw, Rows z, Rows b, Rows gate) {
  const checkpoint::KdaConfig& c = pass.config.kda;
  const int64_t width = c.width();
  const Rows q = raw.columns(0, width);
  const Rows k = raw.columns(width, width);
  const Rows v = raw.columns(2 * width, width);
  if (w.g) {
    project(pass, x, {{w.q, q}, {w.k, k}, {w.v, v}, {*w.g, gate}});
  } else {
    project(pass, x, {{w.q, q}, {w.k, k}, {w.v, v}});
  }
  const Workspace::Scope scope(pass.workspace);
  const Rows narrow = pass.workspace.rows(x.rows, c.dim);
  pass.ops.linear(x, w.f_a, narrow);
  project(pass, narrow, {{w.f_b, z}});
  pass.ops.linear(x, w.b, b, ops::Output::f32);
  if (!w.g) {
    pass.ops.linear(x, *w.g_a, narrow);
    project(pass, narrow, {{*w.g_b, gate}});
  }
}

void convolve(const Pass& pass, const KdaWeights& w, const KdaLayerView& view, ConstRows raw, Rows y) {
  const int64_t history = pass.config.kda.conv_taps - 1;
  std::vector<ops::ConvSegment> segments;
  int64_t row = 0;
  for (const Segment& s : pass.batch.segments) {
    float* slot = conv_state(view, s.slot);
    const float* before = s.position == 0 ? nullptr : slot;
    // Checkpoints first: the convolution may overwrite the state they begin from.
    for (const StateCheckpoint& c : s.checkpoints) {
      shift_conv_state(before, raw.row_range(row, s.rows), c.rows, history, conv_state(view, c.slot));
    }
    segments.push_back({row, s.rows, before, s.commit ? slot : nullptr});
    row += s.rows;
  }
  pass.ops.short_conv({raw, w.conv.data(), pass.config.kda.conv_taps, segments, y});
}

void recur(const Pass& pass, const KdaLayerView& view, ops::KdaArgs args) {
  std::vector<ops::KdaSegment> segments;
  std::vector<std::vector<ops::KdaCheckpoint>> checkpoints(pass.batch.segments.size());
  int64_t row = 0;
  for (size_t i = 0; i < pass.batch.segments.size(); ++i) {
    const Segment& s = pass.batch.segments[i];
    float* slot = recurrent_state(view, s.slot);
    for (const StateCheckpoint& c : s.checkpoints) checkpoints[i].push_back({c.rows, recurrent_state(view, c.slot)});
    segments.push_back({row, s.rows, s.position == 0 ? nullptr : slot, s.commit ? slot : nullptr, checkpoints[i]});
    row += s.rows;
  }
  args.segments = segments;
  pass.ops.kda(args);
}

void copy_rows(ConstRows from, Matrix& to, int64_t at) {
  for (int64_t r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to.view().row(at + r));
}

void keep_for_replay(const Pass& pass, int64_t index, ConstRows raw, const ops::KdaArgs& a) {
  ReplayRecord& record = *pass.replay;
  KdaReplay& layer = record.layers[static_cast<size_t>(index)];
  layer = {Matrix(record.rows, raw.cols), Matrix(record.rows, a.k.cols), Matrix(record.rows, a.v.cols),
           Matrix(record.rows, a.log_decay.cols), Matrix(record.rows, a.beta.cols)};
  int64_t row = 0;
  for (size_t i = 0; i < pass.batch.segments.size(); ++i) {
    const int64_t rows = pass.batch.segments[i].rows;
    if (const int64_t at = record.row_begin[i]; at >= 0) {
      copy_rows(raw.row_range(row, rows), layer.raw, at);
      copy_rows(a.k.row_range(row, rows), layer.k, at);
      copy_rows(a.v.row_range(row, rows), layer.v, at);
      copy_rows(a.log_decay.row_range(row, rows), layer.log_decay, at);
      copy_rows(a.beta.row_range(row, rows), layer.beta, at);
    }
    row += rows;
  }
}

// The state after the pass, in the golden files' layouts: recurrent [heads, key, value], convolution [q|k|v, tap,
// width].
void trace_state(const Pass& pass, const KdaLayerView& view) {
  const checkpoint::KdaConfig& c = pass.config.kda;
  const int32_t slot = pass.batch.segments.front().slot;
  const int64_t history = c.conv_taps - 1;
  pass.trace.stack("kda_state", {recurrent_state(view, slot), c.heads, c.dim * c.dim, c.dim * c.dim}, {c.dim, c.dim});
  Matrix conv(3, history * c.width());
  for (int64_t part = 0; part < 3; ++part) {
    for (int64_t j = 0; j < history; ++j) {
      std::copy_n(conv_state(view, slot) + (j * 3 + part) * c.width(), c.width(),
                  conv.view().row(part) + j * c.width());
    }
  }
  pass.trace.stack("kda_conv_state", conv.view(), {history, c.width()});
}

}  // namespace

void kda_attention(const Pass& pass, const KdaWeights& w, int64_t index, ConstRows x, Rows out) {
  const checkpoint::KdaConfig& c = pass.config.kda;
  const KdaLayerView& view = pass.states.kda[static_cast<size_t>(index)];
  const int64_t rows = x.rows;
  const int64_t width = c.width();
  const Workspace::Scope scope(pass.workspace);
  const Rows raw = pass.workspace.rows(rows, 3 * width);
  const Rows qkv = pass.workspace.rows(rows, 3 * width);
  const Rows z = pass.workspace.rows(rows, width);
  const Rows b = pass.workspace.rows(rows, c.heads);
  const Rows gate = pass.workspace.rows(rows, width);
  const Rows log_decay = pass.workspace.rows(rows, width);
  const Rows beta = pass.workspace.rows(rows, c.heads);
  const Rows mixed = z;  // the decay projection is used up before the recurrence writes its results

  project(pass, w, x, raw, z, b, gate);
  convolve(pass, w, view, raw, qkv);
  const Rows q = qkv.columns(0, width);
  const Rows k = qkv.columns(width, width);
  const Rows v = qkv.columns(2 * width, width);
  const ops::KdaGate decay{w.a_log.data(), w.dt_bias.data(), c.lower_bound.has_value(), c.lower_bound.value_or(0.0F)};
  pass.ops.kda_prepare({c.heads, c.dim, decay, q, k, z, b, log_decay, beta});
  const ops::KdaArgs recurrence{c.heads, c.dim, q, k, v, log_decay, beta, mixed, {}};
  recur(pass, view, recurrence);
  if (pass.replay != nullptr) keep_for_replay(pass, index, raw, recurrence);
  if (pass.trace) {
    const std::vector<int64_t> heads{c.heads, c.dim};
    pass.trace.first("kda.q", q, heads);
    pass.trace.first("kda.k", k, heads);
    pass.trace.first("kda.v", v, heads);
    pass.trace.first("kda.log_decay", log_decay, heads);
    pass.trace.first("kda.beta", beta);
    pass.trace.first("kda.out", mixed, heads);
    trace_state(pass, view);
  }
  pass.ops.gated_rms_norm(mixed, w.o_norm.data(), gate, c.dim, pass.config.eps, mixed);
  project(pass, mixed, {{w.o, out}});
}

void kda_replay(const Pass& pass, const ReplayRecord& record, int64_t index, std::span<const int64_t> accepted) {
  const checkpoint::KdaConfig& c = pass.config.kda;
  const KdaLayerView& view = pass.states.kda[static_cast<size_t>(index)];
  const KdaReplay& layer = record.layers[static_cast<size_t>(index)];
  std::vector<ops::KdaSegment> segments;
  for (size_t i = 0; i < pass.batch.segments.size(); ++i) {
    const Segment& s = pass.batch.segments[i];
    const int64_t begin = record.row_begin[i];
    if (begin < 0 || accepted[i] == 0) continue;
    float* conv = conv_state(view, s.slot);
    shift_conv_state(s.position == 0 ? nullptr : conv, layer.raw.view().row_range(begin, accepted[i]), accepted[i],
                     c.conv_taps - 1, conv);
    float* state = recurrent_state(view, s.slot);
    segments.push_back({begin, accepted[i], s.position == 0 ? nullptr : state, state, {}});
  }
  if (segments.empty()) return;
  // Only states are wanted, so no row of q is read; k stands in for it.
  pass.ops.kda({c.heads,
                c.dim,
                layer.k.view(),
                layer.k.view(),
                layer.v.view(),
                layer.log_decay.view(),
                layer.beta.view(),
                {nullptr, record.rows, c.width(), c.width()},
                segments});
}

}  // namespace trireme::model
