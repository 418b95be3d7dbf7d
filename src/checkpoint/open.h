// Opening a checkpoint: from names and headers to the place and format of every weight. The inside of Checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "tensor/weight.h"

namespace trireme::checkpoint {

// A stored tensor; info is null where there is none.
struct TensorPlace {
  int64_t file = -1;  // index into OpenedCheckpoint::files
  const TensorInfo* info = nullptr;
};

// A weight whose dtypes and shapes were checked.
struct OpenedWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  TensorPlace data;
  TensorPlace scales;
  int64_t bytes() const { return data.info->bytes() + (scales.info == nullptr ? 0 : scales.info->bytes()); }
};

struct OpenedCheckpoint {
  std::filesystem::path directory;
  ModelConfig config;
  int64_t layer_begin = 0;
  int64_t layer_end = 0;
  std::vector<SafetensorsFile> files;                     // by rising name
  std::unordered_map<std::string, OpenedWeight> weights;  // by canonical name, of the opened layers
  int64_t vision_tensors = 0;
};

// As Checkpoint::open says; layer_end -1 is the model's.
OpenedCheckpoint open_checkpoint(const std::filesystem::path& dir, int64_t layer_begin, int64_t layer_end);

}  // namespace trireme::checkpoint
