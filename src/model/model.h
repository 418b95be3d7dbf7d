// The whole K3 text model on one rank: embedding, layers, output.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ledger/ledger.h"
#include "model/batch.h"
#include "model/trace.h"
#include "ops/ops.h"

namespace trireme::model {

// Kept from a forward pass for its uncommitted segments: what folding accepted rows into the KDA state needs, layer by
// layer.
struct ReplayRecord;

struct ForwardOutput {
  Matrix logits;                               // [logit_rows, vocab] float32
  std::vector<Matrix> taps;                    // one a requested tap layer, [rows, hidden]
  std::shared_ptr<const ReplayRecord> replay;  // set if a segment had commit = false
};

class Model {
 public:
  // Packs the weights of an opened checkpoint into memory taken from `account`. `ops` must outlive the model.
  Model(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const checkpoint::ModelConfig& config() const;
  const ops::Ops& ops() const;

  // Layers (0-based) after which the mixed stream is captured for a draft: MIX(h, bank) with layer l+1's attention-side
  // scorer, or the output scorer after the last layer.
  void set_taps(std::vector<int64_t> layers);

  // Runs a batch. Latents of every row are stored in their pages; KDA slots advance for segments with commit. Throws
  // BadInput for a token outside the vocabulary. `trace` may be null.
  ForwardOutput forward(const Batch& batch, const StateViews& states, Trace* trace = nullptr) const;

  // Folds the first accepted[i] rows of segment i of an uncommitted batch into its slot (0: nothing changes).
  // Bit-identical to having run those rows with commit.
  void commit(const Batch& batch, const ReplayRecord& record, std::span<const int64_t> accepted,
              const StateViews& states) const;

  // For drafts, which share the target's tables: embedding rows, and lm_head logits (float32) of normed rows.
  void embed(std::span<const int32_t> tokens, Rows out) const;
  void lm_head(ConstRows x, Rows logits) const;

 private:
  struct Weights;
  std::unique_ptr<Weights> weights_;
};

}  // namespace trireme::model
