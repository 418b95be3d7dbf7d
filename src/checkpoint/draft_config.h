// config.json of a block-parallel draft: DSpark (DSparkDraftModel) or DFlash (DFlashDraftModel), Qwen3-style GQA
// backbone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

// The window that a full_attention layer of a draft gets: a serving choice, since a draft's context must be bounded.
inline constexpr int64_t kFullAttentionDraftWindow = 2048;

struct DraftConfig {
  bool dspark = false;  // true: row 0 (the anchor) predicts the first draft, with a Markov head; false: DFlash, row j
                        // predicts itself
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t inter = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t dim = 0;
  float eps = 1e-5F;
  double rope_theta = 10000.0;
  std::vector<int64_t> windows;        // one a layer, tokens, the row's own position included
  std::vector<int64_t> target_layers;  // taps, 0-based, after the layer; in the order of concatenation
  int64_t mask_token = 0;
  int64_t block = 0;        // rows of a full block
  int64_t markov_rank = 0;  // DSpark
  int64_t vocab = 0;
  std::optional<int64_t> target_depth;  // layers of the target it was made for, if it says so

  // Most drafts that one block can propose.
  int64_t max_gamma() const { return dspark ? block : block - 1; }
  int64_t kv_width() const { return kv_heads * dim; }
  int64_t max_window() const;
};

// Throws BadInput that names the file and key; what the engine cannot run (YaRN, causal blocks, other heads or streams)
// is refused.
DraftConfig read_draft_config(const std::filesystem::path& dir);

}  // namespace trireme::checkpoint
