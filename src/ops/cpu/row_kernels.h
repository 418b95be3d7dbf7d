// Inner kernels of everything but matrix products: one table an instruction set. A kernel works on one row, one head or
// one slice on the calling thread; cutting work over threads is the callers' (cpu_rows.cc, cpu_kda.cc, cpu_mla.cc,
// cpu_draft.cc). `round` means: results are rounded to bfloat16 values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/activation.h"
#include "ops/kda.h"
#include "ops/mla.h"

namespace trireme::ops::cpu {

// A block of rows and channels of short_conv: y[t][c] for t of [row_begin, row_end) within the segment, channels [0,
// channels).
struct ConvBlock {
  const float* x = nullptr;  // channel 0 of the segment's row 0
  int64_t x_stride = 0;
  const float* history = nullptr;  // channel 0 of state_in, [taps - 1][history_stride]; null: zeros
  int64_t history_stride = 0;
  const float* weight = nullptr;  // of channel 0, [channels][taps]
  int64_t taps = 0;
  int64_t channels = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* scratch = nullptr;  // 64-byte aligned, taps * (channels rounded up to 16)
  float* y = nullptr;        // like x
  int64_t y_stride = 0;
};

// One head's rows of a KDA segment. Pointers are at column 0 of the head, in the segment's first row.
struct KdaHead {
  int64_t dim = 0;
  int64_t rows = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* log_decay = nullptr;
  const float* beta = nullptr;
  float* out = nullptr;  // null: not wanted
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, log_decay_stride = 0, beta_stride = 0, out_stride = 0;
  const float* state_in = nullptr;             // [dim][dim] of this head, or null
  float* state_out = nullptr;                  // the same, or null
  const KdaCheckpoint* checkpoints = nullptr;  // their states are of the whole layer:
  int64_t checkpoint_count = 0;
  int64_t checkpoint_offset = 0;  // ... this head's begin here
};

// Rows and heads of one MLA segment that one thread attends together: lanes (row, head), rows outermost. Lanes and
// latent columns are padded (RowKernels::mla_lanes, mla_columns) so that kernels have no edges.
struct MlaBlock {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t position = 0;      // of the first row's token
  const float* q = nullptr;  // first row, first head: [row * q_stride + head * width]
  int64_t q_stride = 0;
  int64_t width = 0;
  int64_t latent = 0;
  float scale = 0;
  bool round = false;
  const std::byte* pages = nullptr;  // LatentPages::base
  const int32_t* page_table = nullptr;
  int64_t page_bytes = 0;
  bool bf16_pages = true;
  TokenShard shard;

  // Keys that a row sees: the first ones of its sequence in these pages. Never falls from row to row.
  int64_t visible(int64_t row) const { return shard.local_rows(position + row + 1); }
};

// Softmax-weighted sums over a range of keys, before division: [lanes] maxima and sums, [lanes][columns] weighted rows.
struct MlaPartial {
  float* max = nullptr;
  float* sum = nullptr;
  float* ctx = nullptr;
};

// One row of one query head of draft attention over a list of keys.
struct DraftHead {
  const float* q = nullptr;
  int64_t dim = 0;
  float scale = 0;
  bool round = false;
  const float* const* keys = nullptr;    // [count] rows of this key/value head
  const float* const* values = nullptr;  // [count]
  int64_t count = 0;
  float* scores = nullptr;  // scratch, count rounded up to 16
  float* out = nullptr;
};

struct RowKernels {
  // ---- row_impl.h. n is the row's length; y may be an input.
  void (*rms_norm_row)(const float* x, const float* w, float eps, int64_t n, bool round, float* y);
  // `weights` is scratch of `count` floats.
  void (*residual_mix_row)(const float* const* sources, int64_t count, const float* score, float eps, int64_t n,
                           bool round, float* weights, float* y);
  // y = sum_i weights[i] * parts[i] / sum_i weights[i] over count >= 1 parts of n values, in order.
  void (*weighted_mean_row)(const float* const* parts, const float* weights, int64_t count, int64_t n, bool round,
                            float* y);
  void (*add_row)(const float* a, const float* b, int64_t n, bool round, float* y);
  void (*sigmoid_gate_row)(const float* x, const float* gate, int64_t n, bool round, float* y);
  void (*gated_rms_norm_row)(const float* x, const float* w, const float* gate, int64_t n, float eps, bool round,
                             float* y);
  void (*glu_row)(const float* gate, const float* up, int64_t n, const Glu& glu, bool round, float* y);
  // y = sigmoid(x), softplus(x), exp(x), tanh(x): for tests and small jobs.
  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*softplus)(const float* x, int64_t n, float* y);
  void (*exp)(const float* x, int64_t n, float* y);
  void (*tanh)(const float* x, int64_t n, float* y);
  // To bfloat16, nearest even, as base/numeric.h has it.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* y);

  // ---- kda_impl.h
  void (*short_conv_block)(const ConvBlock& block, bool round);
  // In place: x <- x * factor / sqrt(sum x^2 + 1e-6), of one head.
  void (*l2_norm_row)(float* x, int64_t n, float factor);
  // Log decay of one head: z, dt_bias and g of `n` channels, a = exp(a_log).
  void (*kda_log_decay_row)(const float* z, const float* dt_bias, float a, const KdaGate& gate, int64_t n, float* g);
  // Value columns that one call of kda_slice covers, and the floats of scratch that it needs for a head of `dim`.
  int64_t kda_slice_columns;
  int64_t (*kda_scratch_floats)(int64_t dim);
  // The recurrence for value columns [column, min(column + kda_slice_columns, dim)). `scratch` is 64-byte aligned.
  void (*kda_slice)(const KdaHead& head, int64_t column, bool round, float* scratch);

  // ---- mla_impl.h
  int64_t (*mla_lanes)(int64_t lanes);                   // rounded up
  int64_t (*mla_columns)(int64_t latent);                // rounded up
  int64_t (*mla_packed_floats)(const MlaBlock& block);   // of packed queries
  int64_t (*mla_scratch_floats)(const MlaBlock& block);  // of mla_pages
  void (*mla_pack_queries)(const MlaBlock& block, float* packed);
  // Attends to pages [page_begin, page_end) from nothing, and overwrites `partial`. The block's last row must see the
  // last page. Of rows that see none of the pages only maximum (-infinity) and sum (0) are written.
  void (*mla_pages)(const MlaBlock& block, const float* packed, int64_t page_begin, int64_t page_end, float* scratch,
                    const MlaPartial& partial);
  // into <- into and part together, for rows [row_begin, rows); `part` is used up.
  void (*mla_merge)(const MlaBlock& block, int64_t row_begin, const MlaPartial& into, const MlaPartial& part);
  // out[row * stride + head * latent] = ctx / sum; zeros for rows that see no key (their part of `partial` is not
  // read).
  void (*mla_finish)(const MlaBlock& block, const MlaPartial& partial, float* out, int64_t out_stride);

  // ---- draft_impl.h
  void (*draft_head)(const DraftHead& head);
};

extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;  // also of the amx backend

}  // namespace trireme::ops::cpu
