// A draft's tensors, packed.
#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/draft_config.h"
#include "ledger/ledger.h"
#include "ops/ops.h"

namespace trireme::model {

struct DraftLayer {
  std::vector<float> input_norm, post_norm, q_norm, k_norm;
  ops::PackedMatrix q, k, v, o, gate, up, down;
};

struct DraftWeights {
  // Reads and packs; memory for matrices comes from the line "weights.draft". Throws BadInput naming the file and
  // tensor.
  DraftWeights(const std::filesystem::path& dir, const ops::Ops& ops, ledger::Account& account);
  // What the constructor takes.
  static int64_t planned_bytes(const std::filesystem::path& dir, const ops::Ops& ops);

  checkpoint::DraftConfig config;
  ops::PackedMatrix fc;                  // [hidden, taps * hidden]
  std::vector<float> hidden_norm, norm;  // [hidden]
  std::vector<DraftLayer> layers;
  ops::EmbeddingTable markov_in;  // W1 [vocab, rank], DSpark
  ops::PackedMatrix markov_out;   // W2 [vocab, rank]
};

// RMSNorm of every head (`dim` columns) by itself, in place.
void norm_heads(const ops::Ops& ops, const std::vector<float>& weight, const checkpoint::DraftConfig& config, Rows x);

}  // namespace trireme::model
