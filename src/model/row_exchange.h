// Rows that travel between the ranks of a group, in blocks padded to one size.
#pragma once

#include <cstdint>
#include <functional>

#include "model/pass.h"

namespace trireme::model {

void copy(ConstRows from, Rows to);
void clear(Rows rows);

// The blocks of all ranks, [size * block, x.cols], padding rows zero; x has at most `block` rows. Taken from the pass's
// workspace.
Rows gather_blocks(const Pass& pass, comm::Communicator& group, ConstRows x, int64_t block);

// Runs a part of a layer that is divided over the attention group by heads or channels: gathers the own blocks x [own
// rows, hidden] to the batch's rows, calls part(all, partial) and leaves the sum of all ranks' partial results for the
// own rows in `out`. Alone in the group it is part(x, out).
void over_attention_group(const Pass& pass, ConstRows x, Rows out,
                          const std::function<void(ConstRows all, Rows partial)>& part);

}  // namespace trireme::model
