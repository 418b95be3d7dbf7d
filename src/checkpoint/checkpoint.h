// A model folder: sharded safetensors, mapped and validated against the catalogue before any tensor is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "tensor/weight.h"

namespace trireme::checkpoint {

// What is known of a stored weight without reading it.
struct StoredWeight {
  CatalogueEntry entry;
  WeightFormat format = WeightFormat::f32;
  int64_t elements = 0;  // as stored, padding included, scales not
  int64_t bytes = 0;     // as stored, scales included
};

struct Shard {
  std::string name;
  int64_t bytes = 0;
  int64_t tensors = 0;
};

// Move-only. Const members may be called from several threads at once.
class Checkpoint {
 public:
  // Opens the folder for layers [layer_begin, layer_end) (the whole model by default): the tensors of those layers, the
  // embedding if layer_begin is 0 (or, tied, if the head is needed), the final norms and the head if layer_end is the
  // model's. The names of all tensors of the model are checked (every one of the catalogue there, no other text
  // tensor), and dtypes, shapes and offsets of the needed ones. Files that hold none of those are not opened. Vision
  // tensors are skipped. Formats go by what exists: MXFP4 if there is weight_packed, block-FP8 if there is
  // weight_scale_inv, otherwise the dtype of weight (F32, F16, BF16). Throws BadInput that names file and tensor.
  static Checkpoint open(const std::filesystem::path& dir);
  static Checkpoint open(const std::filesystem::path& dir, int64_t layer_begin, int64_t layer_end);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const ModelConfig& config() const;
  const std::filesystem::path& directory() const;

  // A weight by canonical name ("layers.3.self_attn.q_proj"). A matrix has the catalogue's [rows, cols]; a vector is
  // one row; a convolution [channels, 1, taps] is [channels, taps]; A_log is cut to the heads. With tied embeddings
  // "lm_head" is the embedding. The view points into the mapped file, whose bytes (and the ones that are needed next)
  // the kernel is asked to read. Throws BadInput if the opened layers have no such tensor, or if its scales hold a NaN,
  // an infinity or a negative number or its FP8 codes a NaN: all of them are read for that.
  WeightView weight(std::string_view name) const;
  bool has(std::string_view name) const;

  // The same without reading or checking anything, for whoever needs a part of it or its format only; check() then
  // reads the part (any rows of the view) and throws as weight() does.
  WeightView stored(std::string_view name) const;
  void check(std::string_view name, const WeightView& part) const;

  // A small tensor (norms, biases, scorers, convolutions) widened to float32. The same checks.
  std::vector<float> floats(std::string_view name) const;

  // Gives back the memory in which the kernel holds the bytes behind `view`, so that packing a model does not hold it
  // twice. The view stays valid: bytes that are touched again are read again.
  void release(const WeightView& view) const;

  int64_t bytes_mapped() const;  // of all tensors that the opened layers need, scales included
  int64_t files_opened() const;

  // For reports: all weights of the opened layers in model order, the opened files by name, and how many vision tensors
  // the folder names.
  std::vector<StoredWeight> weights() const;
  std::vector<Shard> shards() const;
  int64_t vision_tensors() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace trireme::checkpoint
