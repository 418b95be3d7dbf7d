#include "model/attention_mla.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "model/context_parallel.h"
#include "model/projection.h"

namespace trireme::model {
namespace {

// Rows that are attended together. Absorbed queries and contexts are (2 latent + rope) values a head, several times a
// layer's other intermediate results (0.4 MB a row at K3's 96 heads), so they exist for a tile of rows only.
constexpr int64_t kTileRows = 128;

// Queries of all heads, [T, heads * (nope + rope)].
void queries(const Pass& pass, const MlaWeights& w, ConstRows x, Rows q) {
  if (!w.q_a) {
    project(pass, x, {{w.q_b, q}});
    return;
  }
  const Workspace::Scope scope(pass.workspace);
  const Rows narrow = pass.workspace.rows(x.rows, w.q_a->rows);
  pass.ops.linear(x, *w.q_a, narrow, ops::Output::f32);
  pass.ops.rms_norm(narrow, w.q_a_norm.data(), pass.config.latent_eps, narrow);
  project(pass, narrow, {{w.q_b, q}});
}

// [ W_kc q_nope | q_rope ] of every head: queries in the space of the latent rows.
void absorb_queries(const Pass& pass, const MlaWeights& w, ConstRows q, Rows absorbed) {
  const checkpoint::MlaConfig& c = pass.config.mla;
  const int64_t in = c.nope + c.rope;
  const int64_t width = c.cache_width();
  for (int64_t h = 0; h < static_cast<int64_t>(w.kc.size()); ++h) {
    pass.ops.linear(q.columns(h * in, c.nope), w.kc[static_cast<size_t>(h)], absorbed.columns(h * width, c.kv_lora));
    for (int64_t t = 0; t < q.rows; ++t) {
      std::copy_n(q.row(t) + h * in + c.nope, c.rope, absorbed.row(t) + h * width + c.kv_lora);
    }
  }
}

// The parts of the segments in rows [begin, begin + count), numbered from `begin`.
std::vector<ops::MlaSegment> segments_in(std::span<const ops::MlaSegment> segments, int64_t begin, int64_t count) {
  std::vector<ops::MlaSegment> parts;
  for (const ops::MlaSegment& s : segments) {
    const int64_t first = std::max(s.row_begin, begin);
    const int64_t last = std::min(s.row_begin + s.rows, begin + count);
    if (first < last) parts.push_back({first - begin, last - first, s.position + first - s.row_begin, s.pages});
  }
  return parts;
}

// What the heads read from the pages, [T, heads * value]; the rows' own latents are stored already. Under context
// parallelism the queries are those of the whole group's heads, over the tokens that this rank stores.
void attend(const Pass& pass, const MlaWeights& w, const ops::LatentPages& pages, ConstRows q, Rows values) {
  const checkpoint::MlaConfig& c = pass.config.mla;
  const auto query_heads = static_cast<int64_t>(w.kc.size());
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.nope + c.rope));
  const Workspace::Scope scope(pass.workspace);
  const int64_t most = std::min(q.rows, kTileRows);
  const Rows absorbed = pass.workspace.rows(most, query_heads * c.cache_width());
  const Rows context = pass.workspace.rows(most, query_heads * c.kv_lora);
  const Rows merged = pass.parallel.context == nullptr ? context : pass.workspace.rows(most, c.heads * c.kv_lora);
  const Rows lse = pass.parallel.context == nullptr ? Rows{} : pass.workspace.rows(most, query_heads);
  for (int64_t begin = 0; begin < q.rows; begin += kTileRows) {
    const int64_t rows = std::min(kTileRows, q.rows - begin);
    absorb_queries(pass, w, q.row_range(begin, rows), absorbed.row_range(0, rows));
    ops::MlaArgs args;
    args.heads = query_heads;
    args.latent = c.kv_lora;
    args.scale = scale;
    args.q = absorbed.row_range(0, rows);
    args.pages = pages;
    const std::vector<ops::MlaSegment> segments = segments_in(pass.segments, begin, rows);
    args.segments = segments;
    args.ctx = context.row_range(0, rows);
    args.shard = token_shard(pass);
    if (pass.parallel.context != nullptr) args.lse = lse.row_range(0, rows);
    pass.ops.mla(args);
    const Rows tile = merged.row_range(0, rows);
    if (pass.parallel.context != nullptr) merge_over_tokens(pass, args.ctx, args.lse, tile);
    for (int64_t h = 0; h < c.heads; ++h) {
      pass.ops.linear(tile.columns(h * c.kv_lora, c.kv_lora), w.vc[static_cast<size_t>(h)],
                      values.row_range(begin, rows).columns(h * c.value, c.value));
    }
  }
}

}  // namespace

void mla_attention(const Pass& pass, const MlaWeights& w, int64_t index, ConstRows x, Rows out) {
  const checkpoint::MlaConfig& c = pass.config.mla;
  const int64_t rows = x.rows;
  const int64_t value_width = c.heads * c.value;
  const ops::LatentPages& pages = pass.states.latent[static_cast<size_t>(index)];
  const Workspace::Scope scope(pass.workspace);
  const Rows latent = pass.workspace.rows(rows, c.cache_width());
  const Rows q = pass.workspace.rows(rows, static_cast<int64_t>(w.kc.size()) * (c.nope + c.rope));
  const Rows values = pass.workspace.rows(rows, value_width);

  pass.ops.linear(x, w.kv_a, latent, ops::Output::f32);
  const Rows normed = latent.columns(0, c.kv_lora);
  pass.ops.rms_norm(normed, w.kv_a_norm.data(), pass.config.latent_eps, normed);
  pass.ops.store_latent({latent, pages, pass.segments, token_shard(pass)});
  queries(pass, w, x, q);
  attend(pass, w, pages, q, values);
  if (pass.trace) {
    pass.trace.first("mla.q", q, {c.heads, c.nope + c.rope});
    pass.trace.first("mla.out", values, {c.heads, c.value});
    pass.trace.stack("mla_latent", latent);
  }
  if (w.g) {
    const Rows gate = pass.workspace.rows(rows, value_width);
    project(pass, x, {{*w.g, gate}});
    pass.ops.sigmoid_gate(values, gate, values);
  }
  project(pass, values, {{w.o, out}});
}

}  // namespace trireme::model
