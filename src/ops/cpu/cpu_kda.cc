// KDA: cuts segments, heads and columns over threads. None of the cuts changes an element's arithmetic.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/thread_scratch.h"

namespace trireme::ops::cpu {
namespace {

constexpr int64_t kConvRows = 64;  // of one piece of work
constexpr int64_t kConvChannels =
    256;  // the same: one kilobyte of a row, and few enough for their weights to stay in the cache
constexpr int64_t kGrainElements = 8192;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t grain_of(int64_t elements_each) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, elements_each));
}

// A copy of a state that no row changed.
void keep_state(const float* in, float* out, int64_t floats) {
  if (out == nullptr || out == in) return;
  if (in != nullptr) {
    std::copy_n(in, floats, out);
  } else {
    std::fill_n(out, floats, 0.0F);
  }
}

// The last taps - 1 inputs of a segment. In place this moves rows towards the front, oldest first, so none is lost.
void keep_conv_history(const ShortConvArgs& args, const ConvSegment& s) {
  if (s.state_out == nullptr) return;
  const int64_t channels = args.x.cols;
  const auto bytes = static_cast<size_t>(channels) * sizeof(float);
  for (int64_t i = 0; i < args.taps - 1; ++i) {
    const int64_t row = s.rows - (args.taps - 1) + i;
    float* to = s.state_out + i * channels;
    if (row >= 0) {
      std::memcpy(to, args.x.row(s.row_begin + row), bytes);
    } else if (s.state_in != nullptr) {
      std::memmove(to, s.state_in + (i + s.rows) * channels, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
}

struct ConvPiece {
  const ConvSegment* segment = nullptr;
  int64_t row_begin = 0;
  int64_t channel = 0;
};

}  // namespace

void CpuOps::short_conv(const ShortConvArgs& args) const {
  const int64_t channels = args.x.cols;
  std::vector<ConvPiece> pieces;
  for (const ConvSegment& s : args.segments) {
    for (int64_t row = 0; row < s.rows; row += kConvRows) {
      for (int64_t c = 0; c < channels; c += kConvChannels) pieces.push_back({&s, row, c});
    }
  }
  const bool round = precision() == Precision::bf16;
  const auto count = static_cast<int64_t>(pieces.size());
  const int64_t rows_each = ceil_div(args.x.rows * ceil_div(channels, kConvChannels), std::max<int64_t>(1, count));
  pool().parallel_for(count, grain_of(rows_each * std::min(channels, kConvChannels)), [&](int64_t begin, int64_t end) {
    float* scratch = thread_scratch<ScratchUse::body>(args.taps * kConvChannels);
    for (int64_t i = begin; i < end; ++i) {
      const ConvPiece& piece = pieces[static_cast<size_t>(i)];
      const ConvSegment& s = *piece.segment;
      row_kernels_.short_conv_block({.x = args.x.row(s.row_begin) + piece.channel,
                                     .x_stride = args.x.stride,
                                     .history = s.state_in == nullptr ? nullptr : s.state_in + piece.channel,
                                     .history_stride = channels,
                                     .weight = args.weight + piece.channel * args.taps,
                                     .taps = args.taps,
                                     .channels = std::min(kConvChannels, channels - piece.channel),
                                     .row_begin = piece.row_begin,
                                     .row_end = std::min(piece.row_begin + kConvRows, s.rows),
                                     .scratch = scratch,
                                     .y = args.y.row(s.row_begin) + piece.channel,
                                     .y_stride = args.y.stride},
                                    round);
    }
  });
  // Only now, since state_out may be the history that the pieces read.
  for (const ConvSegment& s : args.segments) keep_conv_history(args, s);
}

void CpuOps::kda_prepare(const KdaPrepareArgs& args) const {
  const int64_t heads = args.heads;
  const int64_t dim = args.dim;
  const float query_factor = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<float> strength(static_cast<size_t>(heads));
  for (int64_t h = 0; h < heads; ++h) strength[static_cast<size_t>(h)] = std::exp(args.gate.a_log[h]);
  pool().parallel_for(args.q.rows * heads, grain_of(3 * dim), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads;
      const int64_t h = i % heads;
      const int64_t c = h * dim;
      row_kernels_.l2_norm_row(args.q.row(t) + c, dim, query_factor);
      row_kernels_.l2_norm_row(args.k.row(t) + c, dim, 1.0F);
      row_kernels_.kda_log_decay_row(args.z.row(t) + c, args.gate.dt_bias + c, strength[static_cast<size_t>(h)],
                                     args.gate, dim, args.log_decay.row(t) + c);
      row_kernels_.sigmoid(args.b.row(t) + h, 1, args.beta.row(t) + h);
    }
  });
}

void CpuOps::kda(const KdaArgs& args) const {
  const int64_t dim = args.dim;
  const int64_t slices = ceil_div(dim, row_kernels_.kda_slice_columns);
  const int64_t pieces = args.heads * slices;
  const bool round = precision() == Precision::bf16;
  std::vector<const KdaSegment*> segments;
  int64_t rows = 0;
  for (const KdaSegment& s : args.segments) {
    if (s.rows == 0) {
      keep_state(s.state_in, s.state_out, args.heads * dim * dim);
    } else {
      segments.push_back(&s);
      rows += s.rows;
    }
  }
  if (segments.empty()) return;
  const auto count = static_cast<int64_t>(segments.size()) * pieces;
  const int64_t each =
      ceil_div(rows, static_cast<int64_t>(segments.size())) * dim * std::min(dim, row_kernels_.kda_slice_columns);
  pool().parallel_for(count, std::max<int64_t>(1, 4 * kGrainElements / each), [&](int64_t begin, int64_t end) {
    float* scratch = thread_scratch<ScratchUse::body>(row_kernels_.kda_scratch_floats(dim));
    for (int64_t i = begin; i < end; ++i) {
      const KdaSegment& s = *segments[static_cast<size_t>(i / pieces)];
      const int64_t h = i % pieces / slices;
      const int64_t c = h * dim;
      const int64_t state = c * dim;
      row_kernels_.kda_slice({.dim = dim,
                              .rows = s.rows,
                              .q = args.out.data == nullptr ? nullptr : args.q.row(s.row_begin) + c,
                              .k = args.k.row(s.row_begin) + c,
                              .v = args.v.row(s.row_begin) + c,
                              .log_decay = args.log_decay.row(s.row_begin) + c,
                              .beta = args.beta.row(s.row_begin) + h,
                              .out = args.out.data == nullptr ? nullptr : args.out.row(s.row_begin) + c,
                              .q_stride = args.q.stride,
                              .k_stride = args.k.stride,
                              .v_stride = args.v.stride,
                              .log_decay_stride = args.log_decay.stride,
                              .beta_stride = args.beta.stride,
                              .out_stride = args.out.stride,
                              .state_in = s.state_in == nullptr ? nullptr : s.state_in + state,
                              .state_out = s.state_out == nullptr ? nullptr : s.state_out + state,
                              .checkpoints = s.checkpoints.data(),
                              .checkpoint_count = static_cast<int64_t>(s.checkpoints.size()),
                              .checkpoint_offset = state},
                             i % slices * row_kernels_.kda_slice_columns, round, scratch);
    }
  });
}

}  // namespace trireme::ops::cpu
