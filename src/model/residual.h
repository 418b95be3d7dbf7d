// The residual stream: plain, or with a bank of saved rows that every sub-layer mixes (attention residuals).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

// The bank keeps the raw stream as it came into layers 0, B, 2B, ... (B = residual_block); at such a layer the running
// sum restarts from the attention output. Without residual_block the stream is h + sub-layer output throughout and
// mix() returns it.
class ResidualStream {
 public:
  // `embedding` rows become the stream and are owned by the pass's workspace.
  ResidualStream(const Pass& pass, Rows embedding) : pass_(pass), prefix_(embedding) {}
  // Goes on where an earlier stage ended: `prefix` is written to, `bank` only read.
  ResidualStream(const Pass& pass, Rows prefix, std::vector<ConstRows> bank)
      : pass_(pass), prefix_(prefix), bank_(std::move(bank)) {}

  ConstRows prefix() const { return prefix_; }
  const std::vector<ConstRows>& bank() const { return bank_; }

  // The input of a sub-layer before its norm: the mix of bank and stream, or the stream while the bank is empty.
  // Written to `out` when it has to be computed; the result is `out` or prefix().
  ConstRows mix(const std::optional<Vector>& score, Rows out) const;

  // Called at the start of layer `layer`, after the attention-side mix: saves the stream if the layer opens a block.
  void enter_layer(int64_t layer);

  // Adds the result of a sub-layer to the stream, or restarts the stream from it after a block was opened.
  void add(ConstRows result);

 private:
  const Pass& pass_;
  Rows prefix_;
  std::vector<ConstRows> bank_;
  bool restart_ = false;  // the next result becomes the stream
};

}  // namespace trireme::model
