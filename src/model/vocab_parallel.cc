#include "model/vocab_parallel.h"

#include <algorithm>
#include <vector>

#include "model/row_exchange.h"

namespace trireme::model {
namespace {

// The rows of `ids` that the table has (its first row is `first`), zeros for others.
void look_up(const Pass& pass, const ops::EmbeddingTable& table, int64_t first, std::span<const int32_t> ids,
             Rows out) {
  std::vector<int32_t> local;
  std::vector<int64_t> rows;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < first || ids[i] >= first + table.rows) continue;
    local.push_back(static_cast<int32_t>(ids[i] - first));
    rows.push_back(static_cast<int64_t>(i));
  }
  const Workspace::Scope scope(pass.workspace);
  const Rows found = pass.workspace.rows(static_cast<int64_t>(local.size()), out.cols);
  pass.ops.embed(local, table, found);
  clear(out);
  for (size_t i = 0; i < rows.size(); ++i) {
    copy(found.row_range(static_cast<int64_t>(i), 1), out.row_range(rows[i], 1));
  }
}

// Logits of the own wanted rows over the whole vocabulary.
void own_logits(const Pass& pass, const PackedMatrix& head, ConstRows normed, Rows out) {
  comm::Communicator* group = pass.parallel.vocab;
  if (group == nullptr) return pass.ops.linear(normed, head, out, ops::Output::f32);
  const int64_t ranks = group->size();
  const int64_t block = pass.shape.logit_block;
  const int64_t widest = layout::range_of(pass.config.vocab, {0, ranks}).size();
  const Workspace::Scope scope(pass.workspace);
  const Rows all = gather_blocks(pass, *group, normed, block);
  const Rows part = pass.workspace.rows(all.rows, widest);
  const Rows back = pass.workspace.rows(all.rows, widest);
  clear(part.columns(head.rows, widest - head.rows));
  pass.ops.linear(all, head, part.columns(0, head.rows), ops::Output::f32);
  group->all_to_all(part, back, comm::Wire::f32);
  for (int64_t r = 0; r < ranks; ++r) {
    const layout::Range columns = layout::range_of(pass.config.vocab, {r, ranks});
    copy(back.row_range(r * block, normed.rows).columns(0, columns.size()), out.columns(columns.begin, columns.size()));
  }
}

}  // namespace

void embed_rows(const Pass& pass, const ops::EmbeddingTable& table, std::span<const int32_t> tokens, Rows out) {
  comm::Communicator* group = pass.parallel.vocab;
  if (group == nullptr) return pass.ops.embed(tokens, table, out);
  const auto block = static_cast<size_t>(pass.shape.block);
  std::vector<int32_t> mine(block, -1);
  std::copy(tokens.begin(), tokens.end(), mine.begin());
  std::vector<int32_t> ids(block * static_cast<size_t>(group->size()));
  group->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(ids)));
  const Workspace::Scope scope(pass.workspace);
  const Rows all = pass.workspace.rows(static_cast<int64_t>(ids.size()), out.cols);
  const Rows own = pass.workspace.rows(pass.shape.block, out.cols);
  look_up(pass, table, layout::range_of(pass.config.vocab, pass.parallel.share.vocab).begin, ids, all);
  group->reduce_scatter(all, own, wire_of(pass.ops));
  copy(own.row_range(0, out.rows), out);
}

Matrix vocab_logits(const Pass& pass, const PackedMatrix& head, ConstRows normed) {
  const auto count = static_cast<int64_t>(pass.batch.logit_rows.size());
  Matrix logits(count, pass.config.vocab);
  comm::Communicator* group = pass.parallel.attention;
  if (group == nullptr) {
    own_logits(pass, head, normed, logits.view());
    return logits;
  }
  // Wanted rows rise, so the blocks of the group's ranks follow each other.
  std::vector<int64_t> rows_of(static_cast<size_t>(group->size()), 0);
  for (const int64_t row : pass.batch.logit_rows) ++rows_of[static_cast<size_t>(row / pass.shape.group_block)];
  const int64_t block = *std::max_element(rows_of.begin(), rows_of.end());
  const Workspace::Scope scope(pass.workspace);
  const Rows own = pass.workspace.rows(block, pass.config.vocab);
  clear(own.row_range(normed.rows, block - normed.rows));
  own_logits(pass, head, normed, own.row_range(0, normed.rows));
  if (count == 0) return logits;
  const Rows all = pass.workspace.rows(block * group->size(), pass.config.vocab);
  group->all_gather(own, all, comm::Wire::f32);
  int64_t at = 0;
  for (size_t r = 0; r < rows_of.size(); ++r) {
    copy(all.row_range(static_cast<int64_t>(r) * block, rows_of[r]), logits.view().row_range(at, rows_of[r]));
    at += rows_of[r];
  }
  return logits;
}

}  // namespace trireme::model
