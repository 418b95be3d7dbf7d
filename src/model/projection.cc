#include "model/projection.h"

#include <algorithm>
#include <vector>

#include "model/row_exchange.h"
#include "model/weight_shard.h"

namespace trireme::model {
namespace {

// The weights came here: one product a block of output rows.
void with_gathered(const Pass& pass, ConstRows x, const Product& p) {
  const int64_t ranks = size_of(pass.parallel.weights);
  for (int64_t r = 0; r < ranks; ++r) {
    const layout::Range out = layout::range_of(p.w.rows, {r, ranks});
    pass.ops.linear(x, pass.shard->block_of(p.w.block, r), p.y.columns(out.begin, out.size()), p.w.output);
  }
}

// Rows of all ranks, [ranks * block, cols], times the resident block; the results go back to the rows' ranks.
void with_moved(const Pass& pass, ConstRows all, const Product& p) {
  comm::Communicator& group = *pass.parallel.weights;
  const int64_t ranks = group.size();
  const int64_t widest = layout::range_of(p.w.rows, {0, ranks}).size();
  const Workspace::Scope scope(pass.workspace);
  const Rows part = pass.workspace.rows(all.rows, widest);
  const Rows back = pass.workspace.rows(all.rows, widest);
  clear(part.columns(p.w.own.rows, widest - p.w.own.rows));  // the last blocks may be narrower
  pass.ops.linear(all, p.w.own, part.columns(0, p.w.own.rows), p.w.output);
  group.all_to_all(part, back, p.w.output == ops::Output::f32 ? comm::Wire::f32 : wire_of(pass.ops));
  const int64_t block = all.rows / ranks;
  for (int64_t r = 0; r < ranks; ++r) {
    const layout::Range out = layout::range_of(p.w.rows, {r, ranks});
    copy(back.row_range(r * block, p.y.rows).columns(0, out.size()), p.y.columns(out.begin, out.size()));
  }
}

}  // namespace

void project(const Pass& pass, ConstRows x, std::initializer_list<Product> products) {
  std::vector<const Product*> moved;
  for (const Product& p : products) {
    if (p.w.block < 0) {
      pass.ops.linear(x, p.w.own, p.y, p.w.output);
    } else if (pass.shard->gathered(p.w.block)) {
      with_gathered(pass, x, p);
    } else {
      moved.push_back(&p);
    }
  }
  if (moved.empty()) return;
  const Workspace::Scope scope(pass.workspace);
  const Rows all = gather_blocks(pass, *pass.parallel.weights, x, pass.shape.block);
  for (const Product* p : moved) with_moved(pass, all, *p);
}

}  // namespace trireme::model
