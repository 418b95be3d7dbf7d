// Inner kernels of matrix products: one table an instruction set. A kernel works on the calling thread; cutting work
// over threads is the callers' (cpu_linear.cc, cpu_experts.cc).
//
// Every output element is one chain of fused multiply-adds over k = 0, 1, ..., K-1 in float32, whatever the number of
// rows, so a row's bits depend on nothing but the row and the weights. (amx in bf16 precision has its own chain:
// linear_amx.cc.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/linear_layout.h"
#include "tensor/weight.h"

namespace trireme::ops::cpu {

// y = W x for some rows. Rows come in the order in which the kernel reads them (LinearPath::pack_rows): tiles of
// `tile_rows` rows, the last one perhaps lower.
struct LinearJob {
  WeightFormat format = WeightFormat::f32;
  int64_t outputs = 0;
  int64_t inputs = 0;
  const std::byte* panels = nullptr;  // PackedMatrix::storage, laid out as linear_layout.h tells
  PanelLayout layout;
  const void* rows = nullptr;  // packed
  int64_t row_count = 0;
  float* y = nullptr;  // [row_count][outputs]
  int64_t y_stride = 0;
  bool round = false;  // results to bfloat16
};

// One way to multiply.
struct LinearPath {
  int64_t tile_rows;     // rows of a full tile
  int64_t group_panels;  // panels that a kernel handles together; ranges of panels should be multiples of it
  bool single_in_place;  // a single row is its own packed form
  // Bytes of `count` packed rows of `inputs` values.
  int64_t (*rows_bytes)(int64_t count, int64_t inputs);
  // Packs rows of tiles [tile_begin, tile_end) of `count` rows into `out` (the start of the whole, 64-byte aligned).
  void (*pack_rows)(const float* const* rows, int64_t count, int64_t inputs, int64_t tile_begin, int64_t tile_end,
                    void* out);
  // Bytes of scratch that `multiply` needs.
  int64_t (*scratch_bytes)(const LinearJob& job);
  // Results of tiles [tile_begin, tile_end) at the outputs of panels [panel_begin, panel_end). `scratch` is 64-byte
  // aligned.
  void (*multiply)(const LinearJob& job, int64_t tile_begin, int64_t tile_end, int64_t panel_begin, int64_t panel_end,
                   std::byte* scratch);
};

struct LinearKernels {
  const LinearPath* exact;  // any activations
  const LinearPath* bf16;   // for activations that bfloat16 holds and results that are rounded to it
};

extern const LinearPath kFloatPathAvx2;
extern const LinearPath kFloatPathAvx512;
extern const LinearPath kTilePathAmx;

inline constexpr LinearKernels kLinearKernelsAvx2 = {&kFloatPathAvx2, &kFloatPathAvx2};
inline constexpr LinearKernels kLinearKernelsAvx512 = {&kFloatPathAvx512, &kFloatPathAvx512};
inline constexpr LinearKernels kLinearKernelsAmx = {&kFloatPathAvx512, &kTilePathAmx};

}  // namespace trireme::ops::cpu
