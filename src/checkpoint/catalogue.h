// Every tensor of the text model, once: its name, shape, formats, how it divides over ranks, and the ledger line it
// counts to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"

namespace trireme::checkpoint {

// How a tensor divides over the ranks of a group.
enum class Split : uint8_t {
  replicated,
  head_rows,      // by head along the outputs
  head_columns,   // by head along the inputs (o_proj); results are summed
  inter_rows,     // by intermediate channel along the outputs (gate, up)
  inter_columns,  // by intermediate channel along the inputs (down); results are summed
  expert,         // whole experts
  vocab_rows,
};

// The line of the memory ledger that a tensor belongs to.
enum class Group : uint8_t { embedding, kda, mla, dense, router, latent, shared, experts, norms, head };

inline constexpr int kGroups = 10;
std::string_view group_name(Group group);

struct CatalogueEntry {
  std::string name;  // canonical: no "language_model." or "model." root, no ".weight"; "layers.3.self_attn.q_proj",
                     // "embed_tokens"
  std::vector<int64_t> shape;  // what the model reads; [out, in] for matrices
  Split split = Split::replicated;
  Group group = Group::norms;
  bool quantizable = false;  // may be stored as block-FP8 or MXFP4
  int64_t layer = -1;        // -1: not of a layer
  // Elements that K3 releases store behind `shape` and nobody reads (A_log is padded to a multiple of 128). The loader
  // accepts any stored length.
  int64_t padding = 0;

  int64_t elements() const;  // product of shape
};

// In model order: embedding, layers, norm, output scorer, lm_head (no lm_head if the embeddings are tied).
std::vector<CatalogueEntry> catalogue(const ModelConfig& config);

}  // namespace trireme::checkpoint
