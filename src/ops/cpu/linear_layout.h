// The packed form of weight matrices, one for all instruction sets: panels of 16 outputs one after the other, the last
// filled up with zero weights. In a panel inputs come in groups that take 64 bytes for the 16 outputs, so that one
// vector load brings a group; the last group is filled up with zeros that kernels never use. Each panel is padded to 64
// bytes.
//
//   f32        1 input a group:   [16] float
//   bf16       2 inputs a group:  [16][2], the pairs that dot-product instructions and AMX tiles take
//   fp8_block  4 inputs a group:  [2][16][2] codes; after all groups, for each 128 inputs, [16] float: the scale of the
//   output's
//              block times 2^8 (codes are decoded as binary16 with the exponent bias 15, 8 too low), NaN where the
//              output has a NaN code in the block (which makes its result NaN either way)
//   mxfp4      8 inputs a group:  [16] words of 8 codes, the first in the low bits; after all groups, for each 32
//   inputs,
//              [16] scale bytes
//
// fp8_block scales from 2^120 up act as infinity.
#pragma once

#include <cstdint>

#include "tensor/weight.h"

namespace trireme::ops::cpu {

inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kGroupBytes = 64;

struct PanelLayout {
  int64_t panels = 0;
  int64_t codes_bytes = 0;  // of one panel
  int64_t panel_bytes = 0;

  int64_t bytes() const { return panels * panel_bytes; }
};

// Inputs of a group; not for f16, which is packed as f32.
constexpr int64_t group_inputs(WeightFormat format) {
  switch (format) {
    case WeightFormat::f16:
    case WeightFormat::f32:
      return 1;
    case WeightFormat::bf16:
      return 2;
    case WeightFormat::fp8_block:
      return 4;
    case WeightFormat::mxfp4:
      return 8;
  }
  return 1;
}

constexpr PanelLayout panel_layout(WeightFormat format, int64_t outputs, int64_t inputs) {
  const int64_t group = group_inputs(format);
  PanelLayout layout;
  layout.panels = (outputs + kPanelOutputs - 1) / kPanelOutputs;
  layout.codes_bytes = (inputs + group - 1) / group * kGroupBytes;
  int64_t scales = 0;
  if (format == WeightFormat::fp8_block) scales = (inputs + kFp8Block - 1) / kFp8Block * kPanelOutputs * 4;
  if (format == WeightFormat::mxfp4) scales = (inputs + kMxBlock - 1) / kMxBlock * kPanelOutputs;
  layout.panel_bytes = (layout.codes_bytes + scales + 63) / 64 * 64;
  return layout;
}

}  // namespace trireme::ops::cpu
