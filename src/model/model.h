// What one rank runs of the K3 text model: all of it, or the layers of its stage with its share of their weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ledger/ledger.h"
#include "model/batch.h"
#include "model/parallel.h"
#include "model/trace.h"
#include "ops/ops.h"

namespace trireme::model {

// Kept from a forward pass for its uncommitted segments: what folding accepted rows into the KDA state needs, layer by
// layer.
struct ReplayRecord;

// The residual stream between two stages: rows of the rank's own block (parallel.h).
struct StageStream {
  Matrix prefix;             // [own rows, hidden]
  std::vector<Matrix> bank;  // oldest first, the same shape
};

struct ForwardOutput {
  Matrix logits;             // [logit_rows, vocab] float32; last stage, on every rank of the attention group
  StageStream stream;        // for the next stage; other stages
  std::vector<Matrix> taps;  // one a requested tap layer, [own rows, hidden]; empty if another stage has it
  std::shared_ptr<const ReplayRecord> replay;  // set if a segment had commit = false
};

class Model {
 public:
  // Packs the rank's weights of an opened checkpoint into memory taken from `account`. `ops` and the communicators must
  // outlive the model. The default is the whole model alone.
  Model(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account,
        Parallel parallel = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const checkpoint::ModelConfig& config() const;
  const ops::Ops& ops() const;

  // Layers (0-based) after which the mixed stream is captured for a draft: MIX(h, bank) with layer l+1's attention-side
  // scorer, or the output scorer after the last layer. A stage's last layer is tapped where layer l+1 is.
  void set_taps(std::vector<int64_t> layers);

  // Runs a batch. Latents of every row are stored in their pages; KDA slots advance for segments with commit. Throws
  // BadInput for a token outside the vocabulary. `trace` may be null; it needs the whole model on one rank. Of several
  // ranks all that share a stage call it together, with the batch of their attention group (empty if it has none).
  // `before` is what the stage before sent, null on the first.
  ForwardOutput forward(const Batch& batch, const StateViews& states, Trace* trace = nullptr,
                        const StageStream* before = nullptr) const;

  // Folds the first accepted[i] rows of segment i of an uncommitted batch into its slot (0: nothing changes).
  // Bit-identical to having run those rows with commit.
  void commit(const Batch& batch, const ReplayRecord& record, std::span<const int64_t> accepted,
              const StateViews& states) const;

  // For drafts, which share the target's tables: embedding rows, and lm_head logits (float32) of normed rows. Whole
  // vocabulary only.
  void embed(std::span<const int32_t> tokens, Rows out) const;
  void lm_head(ConstRows x, Rows logits) const;

 private:
  struct Weights;
  std::unique_ptr<Weights> weights_;
};

}  // namespace trireme::model
