// The table of row kernels for one Vec. Included by row_avx2.cc and row_avx512.cc only.
#pragma once

#include "ops/cpu/draft_impl.h"
#include "ops/cpu/kda_impl.h"
#include "ops/cpu/mla_impl.h"
#include "ops/cpu/row_impl.h"
#include "ops/cpu/row_kernels.h"

namespace trireme::ops::cpu {

template <class V>
constexpr RowKernels make_row_kernels() {
  using Row = RowImpl<V>;
  using Kda = KdaImpl<V>;
  using Mla = MlaImpl<V>;
  return {
      .rms_norm_row = Row::rms_norm_row,
      .residual_mix_row = Row::residual_mix_row,
      .weighted_mean_row = Row::weighted_mean_row,
      .add_row = Row::add_row,
      .sigmoid_gate_row = Row::sigmoid_gate_row,
      .gated_rms_norm_row = Row::gated_rms_norm_row,
      .glu_row = Row::glu_row,
      .sigmoid = Row::sigmoid,
      .softplus = Row::softplus,
      .exp = Row::exp,
      .tanh = Row::tanh,
      .to_bf16 = Row::to_bf16,
      .short_conv_block = Kda::short_conv_block,
      .l2_norm_row = Kda::l2_norm_row,
      .kda_log_decay_row = Kda::log_decay_row,
      .kda_slice_columns = Kda::kSliceColumns,
      .kda_scratch_floats = Kda::scratch_floats,
      .kda_slice = Kda::slice,
      .mla_lanes = Mla::padded_lanes,
      .mla_columns = Mla::padded_columns,
      .mla_packed_floats = Mla::packed_floats,
      .mla_scratch_floats = Mla::scratch_floats,
      .mla_pack_queries = Mla::pack_queries,
      .mla_pages = Mla::pages,
      .mla_merge = Mla::merge,
      .mla_finish = Mla::finish,
      .draft_head = DraftImpl<V>::head,
  };
}

}  // namespace trireme::ops::cpu
