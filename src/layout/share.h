// What one rank owns of a model: plain numbers, from which loader, ledger and caches derive the same slices.
#pragma once

#include <cstdint>
#include <optional>

#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"

namespace trireme::layout {

// Share `index` of `count`.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
  bool whole() const { return count == 1; }
};

// Items [begin, end) of `total` in share `part`: shares of ceil(total / count), the last ones shorter or empty.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
Range range_of(int64_t total, const Part& part);

// The default is the whole model on one rank.
struct RankShare {
  int64_t layer_begin = 0;
  int64_t layer_end = -1;  // -1: to the last layer
  Part heads;              // attention heads (KDA and MLA) and the channels of dense MLPs
  Part query_heads;        // heads whose queries are computed here: those of the whole context-parallel group
  Part tokens;             // decode context parallel: token t is stored on index t mod count
  Part experts;            // routed experts
  Part vocab;              // rows of embedding and lm_head
  Part weights;            // weight shard: this rank keeps these rows of each sharded matrix
};

// A block of a matrix or (cols = 1) a vector.
struct Slice {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t col_begin = 0;
  int64_t cols = 0;
};

// True if the matrix is kept in row blocks over the weight-shard group: the latent projections and the shared expert of
// every MoE layer, and with whole heads also q, k, v, f_b, g, o of KDA and q_b, g, o of MLA layers; never in layer 0.
bool is_sharded(const checkpoint::CatalogueEntry& entry, const RankShare& share);

// The block of a tensor that the rank keeps, by the entry's Split; nothing if it keeps none of it (other stage, other
// rank's expert, an empty share of rows or columns). Vectors and convolutions count as one column (convolutions: taps
// columns) with a row an element. q_b_proj, q_proj and kv_b_proj of MLA go by query_heads. The shared expert's channels
// are whole on every rank. Sharded matrices are cut by rows, o_proj and down_proj too (range_of(rows, share.weights)).
// embed_tokens belongs to the first stage (with tied embeddings also to the last), norm, output scorer and lm_head to
// the last.
std::optional<Slice> slice_of(const checkpoint::CatalogueEntry& entry, const checkpoint::ModelConfig& config,
                              const RankShare& share);

// The model as the rank's attention sees it: heads divided, everything else unchanged.
checkpoint::ModelConfig local_config(const checkpoint::ModelConfig& config, const RankShare& share);

}  // namespace trireme::layout
