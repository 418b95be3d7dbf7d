// y = W x for rows of activations, with W in the layout that one backend wants.
#pragma once

#include <cstdint>

#include "tensor/buffer.h"
#include "tensor/weight.h"

namespace trireme::ops {

// What an operation does with its float32 results in bf16 precision; in f32 precision both mean the same.
enum class Output : uint8_t {
  rounded,  // to bfloat16, nearest even
  f32,      // kept
};

// A weight matrix packed by Ops::pack. Only the backend that packed it can read `storage`.
struct PackedMatrix {
  WeightFormat format = WeightFormat::f32;  // f32, bf16, fp8_block or mxfp4 (f16 is packed as f32)
  int64_t rows = 0;                         // outputs
  int64_t cols = 0;                         // inputs
  Buffer storage;                           // exactly Ops::packed_bytes(format, rows, cols)
};

// An embedding table in the checkpoint's order and format (bf16, f16 or f32): not packed, since rows are only gathered.
struct EmbeddingTable {
  WeightFormat format = WeightFormat::bf16;
  int64_t rows = 0;
  int64_t cols = 0;
  Buffer storage;
};

}  // namespace trireme::ops
