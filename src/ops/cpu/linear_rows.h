// Packed activations of the float32 kernels: tiles of rows, each [inputs][height], so that the rows' values of one
// input lie together.
#pragma once

#include <cstdint>

namespace trireme::ops::cpu {

// Packs `count` <= height rows of `inputs` values into one tile; missing rows become zeros. `tile` holds inputs *
// height floats.
void pack_row_tile(const float* const* rows, int64_t count, int64_t inputs, int64_t height, float* tile);

}  // namespace trireme::ops::cpu
