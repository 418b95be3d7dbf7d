#include "model/row_exchange.h"

#include <algorithm>

namespace trireme::model {

void copy(ConstRows from, Rows to) {
  for (int64_t r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to.row(r));
}

void clear(Rows rows) {
  for (int64_t r = 0; r < rows.rows; ++r) std::fill_n(rows.row(r), rows.cols, 0.0F);
}

Rows gather_blocks(const Pass& pass, comm::Communicator& group, ConstRows x, int64_t block) {
  const Rows all = pass.workspace.rows(group.size() * block, x.cols);
  const Workspace::Scope scope(pass.workspace);
  const Rows mine = pass.workspace.rows(block, x.cols);
  copy(x, mine);
  clear(mine.row_range(x.rows, block - x.rows));
  group.all_gather(mine, all, wire_of(pass.ops));
  return all;
}

void over_attention_group(const Pass& pass, ConstRows x, Rows out,
                          const std::function<void(ConstRows all, Rows partial)>& part) {
  comm::Communicator* group = pass.parallel.attention;
  if (group == nullptr) return part(x, out);
  const StepShape& shape = pass.shape;
  if (shape.batch_rows == 0) return;  // so on all ranks of the group
  const Workspace::Scope scope(pass.workspace);
  const Rows all = gather_blocks(pass, *group, x, shape.group_block);
  const Rows partial = pass.workspace.rows(all.rows, out.cols);
  clear(partial.row_range(shape.batch_rows, all.rows - shape.batch_rows));
  part(all.row_range(0, shape.batch_rows), partial.row_range(0, shape.batch_rows));
  const Rows mine = pass.workspace.rows(shape.group_block, out.cols);
  group->reduce_scatter(partial, mine, wire_of(pass.ops));
  copy(mine.row_range(0, out.rows), out);
}

}  // namespace trireme::model
