#include "model/context_parallel.h"

#include <cstring>
#include <vector>

#include "comm/wire.h"

namespace trireme::model {

void merge_over_tokens(const Pass& pass, ConstRows ctx, ConstRows lse, Rows merged) {
  comm::Communicator& group = *pass.parallel.context;
  const int64_t ranks = group.size();
  const int64_t latent = pass.config.mla.kv_lora;
  const int64_t heads = pass.config.mla.heads;  // of one rank
  const comm::Wire wire = wire_of(pass.ops);
  const int64_t ctx_bytes = ctx.rows * heads * latent * comm::element_bytes(wire);
  const int64_t lse_bytes = ctx.rows * heads * 4;
  // A block is the rank's heads of every row, then (from a multiple of four bytes on) their log-sum-exps.
  const int64_t block = (ctx_bytes + 3) / 4 * 4 + lse_bytes;
  std::vector<std::byte> send(static_cast<size_t>(block * ranks));
  std::vector<std::byte> receive(send.size());
  for (int64_t r = 0; r < ranks; ++r) {
    std::byte* to = send.data() + r * block;
    comm::pack(ctx.columns(r * heads * latent, heads * latent), wire, to);
    comm::pack(lse.columns(r * heads, heads), comm::Wire::f32, to + block - lse_bytes);
  }
  group.all_to_all(send, receive);

  const Workspace::Scope scope(pass.workspace);
  std::vector<ConstRows> parts;
  std::vector<ConstRows> sums;
  for (int64_t r = 0; r < ranks; ++r) {
    const std::byte* from = receive.data() + r * block;
    const Rows part = pass.workspace.rows(ctx.rows, heads * latent);
    const Rows sum = pass.workspace.rows(ctx.rows, heads);
    comm::unpack(from, part, wire);
    comm::unpack(from + block - lse_bytes, sum, comm::Wire::f32);
    parts.push_back(part);
    sums.push_back(sum);
  }
  ops::MergeArgs args;
  args.ctx = parts;
  args.lse = sums;
  args.out = merged;
  pass.ops.merge_contexts(args);
}

}  // namespace trireme::model
