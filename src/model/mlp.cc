#include "model/mlp.h"

#include <algorithm>

#include "model/expert_parallel.h"
#include "model/projection.h"
#include "model/row_exchange.h"
#include "model/weight_shard.h"

namespace trireme::model {
namespace {

// Rows that a dense MLP takes at a time: its intermediate rows are the widest of the model.
constexpr int64_t kRowTile = 512;

// Whether the rows that a projection reads go to its blocks, which all ranks of the shard do together.
bool moves(const Pass& pass, const Projection& w) { return w.block >= 0 && !pass.shard->gathered(w.block); }

void finish_mlp(const Pass& pass, const MlpWeights& w, Rows gate, ConstRows up, Rows out) {
  pass.ops.glu(gate, up, glu_of(pass.config), gate);
  project(pass, gate, {{w.down, out}});
}

}  // namespace

ops::Glu glu_of(const checkpoint::ModelConfig& config) {
  if (!config.situ) return {ops::Glu::Kind::swiglu, 0, 0};
  return {ops::Glu::Kind::situ, config.situ_beta, config.situ_linear_beta};
}

void dense_mlp(const Pass& pass, const MlpWeights& w, ConstRows x, Rows out) {
  const Workspace::Scope scope(pass.workspace);
  // Where activations move, every rank of the shard calls project() once, whatever rows it has.
  const int64_t tile = moves(pass, w.gate) ? x.rows : std::min(kRowTile, x.rows);
  const Rows gate_tile = pass.workspace.rows(tile, w.gate.rows);
  const Rows up_tile = pass.workspace.rows(tile, w.up.rows);
  int64_t first = 0;
  do {
    const int64_t count = std::min(tile, x.rows - first);
    const Rows gate = gate_tile.row_range(0, count);
    const Rows up = up_tile.row_range(0, count);
    project(pass, x.row_range(first, count), {{w.gate, gate}, {w.up, up}});
    finish_mlp(pass, w, gate, up, out.row_range(first, count));
    first += count;
  } while (first < x.rows);
}

void moe_mlp(const Pass& pass, const MoeWeights& w, ConstRows x, Rows out) {
  const checkpoint::MoeConfig& c = pass.config.moe;
  const int64_t rows = x.rows;
  const int64_t width = c.latent.value_or(pass.config.hidden);
  const Workspace::Scope scope(pass.workspace);
  const Rows logits = pass.workspace.rows(rows, c.experts);
  const std::span<int32_t> ids = pass.workspace.ints(rows * c.top_k);
  const std::span<float> weights = pass.workspace.floats(rows * c.top_k);
  pass.ops.linear(x, w.router, logits, ops::Output::f32);
  pass.ops.route({logits, w.bias.data(), c.top_k, c.renormalize, c.scaling, ids.data(), weights.data()});

  ConstRows z = x;
  // x travels once for all that reads it; otherwise the shared expert has the time of the combine to itself.
  const bool together = w.latent_down && w.shared && moves(pass, *w.latent_down);
  const Rows gate = together ? pass.workspace.rows(rows, w.shared->gate.rows) : Rows{};
  const Rows up = together ? pass.workspace.rows(rows, w.shared->up.rows) : Rows{};
  if (w.latent_down) {
    const Rows down = pass.workspace.rows(rows, width);
    if (together) {
      project(pass, x, {{*w.latent_down, down}, {w.shared->gate, gate}, {w.shared->up, up}});
    } else {
      project(pass, x, {{*w.latent_down, down}});
    }
    z = down;
  }
  const auto run_shared = [&] {
    if (!w.shared) return;
    together ? finish_mlp(pass, *w.shared, gate, up, out) : dense_mlp(pass, *w.shared, x, out);
  };
  const Rows sum = pass.workspace.rows(rows, width);
  if (pass.parallel.experts == nullptr) {
    pass.ops.experts({z, ids.data(), weights.data(), c.top_k, w.experts, glu_of(pass.config), sum});
    run_shared();
  } else {
    // The shared expert runs while results travel back.
    ExpertExchange exchange(pass, w, z, ids.data(), weights.data());
    exchange.dispatch(*pass.side);
    run_shared();
    exchange.combine(sum);
  }
  if (pass.trace) {
    pass.trace.stack("router_logits", logits);
    pass.trace.stack_ids("router_ids", ids.data(), rows, c.top_k);
    pass.trace.stack("router_weights", {weights.data(), rows, c.top_k, c.top_k});
    pass.trace.first("moe_latent_in", z);
    pass.trace.first("moe_latent_sum", sum);
  }
  if (w.latent_norm) pass.ops.rms_norm(sum, w.latent_norm->data(), pass.config.eps, sum);
  Rows routed = sum;
  if (w.latent_up) {
    routed = pass.workspace.rows(rows, pass.config.hidden);
    project(pass, sum, {{*w.latent_up, routed}});
  }
  if (w.shared) {
    pass.ops.add(routed, out, out);
  } else {
    copy(routed, out);
  }
}

}  // namespace trireme::model
