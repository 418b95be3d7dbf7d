// What becomes of each tensor of the catalogue in memory. The plan counts with it and the model loads by it, so the two
// cannot differ.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/catalogue.h"
#include "layout/share.h"
#include "ops/ops.h"
#include "tensor/weight.h"

namespace trireme::ledger {

enum class Form : uint8_t {
  table,     // the embedding, rows as stored
  packed,    // a matrix in the layout of the backend
  vector,    // float32 elements: norms, biases, convolutions
  folded,    // multiplied into the vector of its norm (residual scorers): takes nothing itself
  absorbed,  // kv_b_proj: split by head into the two halves of absorbed attention, itself not kept
};

Form form_of(const checkpoint::CatalogueEntry& entry);

// The line that packed matrices of a group are charged to, for example "weights.kda".
std::string weight_line(checkpoint::Group group);

inline constexpr const char* kVectorLine = "weights.norms";
inline constexpr const char* kDerivedLine = "weights.derived";
inline constexpr const char* kHeadLine = "weights.head";
inline constexpr const char* kShardLine = "weights.sharded";
inline constexpr const char* kStagingLine = "weights.staging";
inline constexpr const char* kPageLine = "pool.mla_pages";
inline constexpr const char* kStateLine = "pool.kda_state";
inline constexpr const char* kDraftLine = "weights.draft";
inline constexpr const char* kDraftWindowLine = "pool.draft_windows";

// The format in which a slice of a stored matrix is packed: a cut through scale blocks along the inputs widens it.
WeightFormat slice_format(const WeightView& stored, const layout::Slice& slice);

// Bytes of one rank's block of a sharded matrix `stored`, and that of all other ranks (the last may use less of it).
int64_t shard_block_bytes(const WeightView& stored, const layout::RankShare& share, const ops::Ops& ops);

// Absorbed matrices are made in the format that activations have.
WeightFormat derived_format(ops::Precision precision);

}  // namespace trireme::ledger
