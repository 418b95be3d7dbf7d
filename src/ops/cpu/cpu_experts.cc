// Router and routed experts.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/expert_groups.h"
#include "ops/cpu/linear_layout.h"
#include "ops/cpu/linear_plan.h"
#include "ops/cpu/linear_scratch.h"

namespace trireme::ops::cpu {
namespace {

// ---- route

// Whether biased score `a` comes before `b`, of an expert with a higher number.
bool before(float a, float b) { return std::isnan(b) ? true : a >= b; }

void route_row(const RouterArgs& args, int64_t t, const RowKernels& kernels, std::vector<float>& score,
               std::vector<float>& biased) {
  const int64_t experts = args.logits.cols;
  kernels.sigmoid(args.logits.row(t), experts, score.data());
  for (int64_t e = 0; e < experts; ++e)
    biased[static_cast<size_t>(e)] = score[static_cast<size_t>(e)] + (args.bias == nullptr ? 0.0F : args.bias[e]);
  int32_t* ids = args.ids + t * args.top_k;
  // Insertion into the list of the best so far, experts in rising order: an equal one stays behind.
  int64_t kept = 0;
  for (int32_t e = 0; e < experts; ++e) {
    const float s = biased[static_cast<size_t>(e)];
    if (kept == args.top_k && before(biased[static_cast<size_t>(ids[kept - 1])], s)) continue;
    int64_t at = kept < args.top_k ? kept++ : kept - 1;
    for (; at > 0 && !before(biased[static_cast<size_t>(ids[at - 1])], s); --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
  double sum = 0;
  for (int64_t j = 0; j < kept; ++j) sum += score[static_cast<size_t>(ids[j])];
  const double divisor = args.renormalize ? sum + 1e-20 : 1.0;
  for (int64_t j = 0; j < kept; ++j) {
    args.weights[t * args.top_k + j] = static_cast<float>(score[static_cast<size_t>(ids[j])] / divisor * args.scaling);
  }
}

// ---- experts

LinearJob job_of(const PackedMatrix& w, const void* rows, int64_t row_count, float* y, bool round) {
  LinearJob job;
  job.format = w.format;
  job.outputs = w.rows;
  job.inputs = w.cols;
  job.panels = w.storage.data();
  job.layout = panel_layout(w.format, w.rows, w.cols);
  job.rows = rows;
  job.row_count = row_count;
  job.y = y;
  job.y_stride = w.rows;
  job.round = round;
  return job;
}

// What all experts of one call share. Buffers hold one row for each pair, in the order of ExpertGroups::slots.
struct Shared {
  const ExpertsArgs& args;
  const ExpertGroups& groups;
  const LinearKernels& linear;
  const RowKernels& rows;
  bool round;
  int64_t inter;
  float* hidden;   // [pairs][inter]
  float* outputs;  // [pairs][in]

  const LinearPath& path(const PackedMatrix& w) const {
    return round && w.format != WeightFormat::f32 ? *linear.bf16 : *linear.exact;
  }
};

// Rows in the kernel's order, in `scratch` unless they can stay in place.
const void* arrange(const LinearPath& path, const std::vector<const float*>& rows, int64_t inputs, Scratch& scratch) {
  const auto count = static_cast<int64_t>(rows.size());
  if (count == 1 && path.single_in_place) return rows[0];
  std::byte* packed = scratch.get(path.rows_bytes(count, inputs));
  path.pack_rows(rows.data(), count, inputs, 0, (count + path.tile_rows - 1) / path.tile_rows, packed);
  return packed;
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// Part `part` of `parts` of a matrix's outputs, in whole groups of panels of every path (4 at most).
Range part_of(int64_t outputs, int64_t part, int64_t parts) {
  constexpr int64_t kWidth = 4 * kPanelOutputs;
  const int64_t groups = (outputs + kWidth - 1) / kWidth;
  return {std::min(groups * part / parts * kWidth, outputs), std::min(groups * (part + 1) / parts * kWidth, outputs)};
}

// A product's outputs of `range`, all its rows.
void multiply_part(const LinearPath& path, const LinearJob& job, Range range) {
  thread_local Scratch scratch;
  const int64_t tiles = (job.row_count + path.tile_rows - 1) / path.tile_rows;
  if (range.begin == range.end) return;
  path.multiply(job, 0, tiles, range.begin / kPanelOutputs, (range.end + kPanelOutputs - 1) / kPanelOutputs,
                scratch.get(path.scratch_bytes(job)));
}

struct ThreadMemory {
  std::vector<const float*> pointers;
  Scratch rows;
  Scratch up;
};

// hidden = glu(gate z, up z) at one part of the inner channels.
void gate_up(const Shared& s, const ExpertGroup& group, int64_t part, int64_t parts, ThreadMemory& memory) {
  const Expert& expert = s.args.experts[static_cast<size_t>(group.expert)];
  memory.pointers.clear();
  for (int64_t i = 0; i < group.count; ++i) {
    memory.pointers.push_back(s.args.z.row(s.groups.slots[static_cast<size_t>(group.begin + i)] / s.args.top_k));
  }
  const LinearPath& path = s.path(expert.gate);
  const LinearPath& up_path = s.path(expert.up);
  float* hidden = s.hidden + group.begin * s.inter;
  float* up = memory.up.floats(group.count * s.inter);
  const void* rows = arrange(path, memory.pointers, s.args.z.cols, memory.rows);
  const Range range = part_of(s.inter, part, parts);
  multiply_part(path, job_of(expert.gate, rows, group.count, hidden, s.round), range);
  if (&up_path != &path) rows = arrange(up_path, memory.pointers, s.args.z.cols, memory.rows);
  multiply_part(up_path, job_of(expert.up, rows, group.count, up, s.round), range);
  for (int64_t i = 0; i < group.count; ++i) {
    float* row = hidden + i * s.inter + range.begin;
    s.rows.glu_row(row, up + i * s.inter + range.begin, range.end - range.begin, s.args.glu, s.round, row);
  }
}

// outputs = down hidden at one part of the outputs.
void down(const Shared& s, const ExpertGroup& group, int64_t part, int64_t parts, ThreadMemory& memory) {
  const Expert& expert = s.args.experts[static_cast<size_t>(group.expert)];
  memory.pointers.clear();
  for (int64_t i = 0; i < group.count; ++i) memory.pointers.push_back(s.hidden + (group.begin + i) * s.inter);
  const LinearPath& path = s.path(expert.down);
  const void* rows = arrange(path, memory.pointers, s.inter, memory.rows);
  float* outputs = s.outputs + group.begin * s.args.y.cols;
  multiply_part(path, job_of(expert.down, rows, group.count, outputs, s.round), part_of(s.args.y.cols, part, parts));
}

// y = sum over j of weights[j] * product(j), in order; product(j) is a row of `width`.
template <class Product>
void sum_choices(const float* weights, int64_t top_k, const Product& product, int64_t width, bool round, float* y) {
  if (top_k == 0) std::fill_n(y, width, 0.0F);
  for (int64_t j = 0; j < top_k; ++j) {
    const float* row = product(j);
    const float weight = weights[j];
    if (j == 0) {
      for (int64_t d = 0; d < width; ++d) y[d] = weight * row[d];
    } else {
      for (int64_t d = 0; d < width; ++d) y[d] += weight * row[d];
    }
  }
  if (round) {
    for (int64_t d = 0; d < width; ++d) y[d] = round_to_bf16(y[d]);
  }
}

// Runs both halves of every expert over the pool. With many experts a thread takes a whole one; with few for the
// threads at hand each half is cut into parts.
void run_experts(const Shared& s, ThreadPool& pool) {
  const auto count = static_cast<int64_t>(s.groups.groups.size());
  const int64_t threads = pool.threads();
  const auto memory = []() -> ThreadMemory& {
    thread_local ThreadMemory of_thread;
    return of_thread;
  };
  if (threads == 1 || count >= 2 * threads) {
    pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        gate_up(s, s.groups.groups[static_cast<size_t>(i)], 0, 1, memory());
        down(s, s.groups.groups[static_cast<size_t>(i)], 0, 1, memory());
      }
    });
    return;
  }
  const int64_t parts = (2 * threads + count - 1) / count;
  const auto each_part = [&](const auto& half) {
    pool.parallel_for(count * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        half(s, s.groups.groups[static_cast<size_t>(i / parts)], i % parts, parts, memory());
    });
  };
  each_part(gate_up);
  each_part(down);
}

}  // namespace

void CpuOps::route(const RouterArgs& args) const {
  pool().parallel_for(args.logits.rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> score(static_cast<size_t>(args.logits.cols));
    std::vector<float> biased(score.size());
    for (int64_t t = begin; t < end; ++t) route_row(args, t, row_kernels_, score, biased);
  });
}

void CpuOps::experts(const ExpertsArgs& args) const {
  const int64_t pairs = args.z.rows * args.top_k;
  if (pairs == 0) {
    for (int64_t t = 0; t < args.y.rows; ++t) std::fill_n(args.y.row(t), args.y.cols, 0.0F);
    return;
  }
  thread_local ExpertGroups groups;
  thread_local std::vector<int64_t> place;
  thread_local Scratch hidden;
  thread_local Scratch outputs;
  group_by_expert(args.ids, pairs, static_cast<int64_t>(args.experts.size()), groups);
  place.resize(static_cast<size_t>(pairs));
  for (size_t i = 0; i < groups.slots.size(); ++i)
    place[static_cast<size_t>(groups.slots[i])] = static_cast<int64_t>(i);

  const int64_t inter = args.experts.front().gate.rows;
  const Shared shared{args,
                      groups,
                      linear_kernels_,
                      row_kernels_,
                      precision() == Precision::bf16,
                      inter,
                      hidden.floats(pairs * inter),
                      outputs.floats(pairs * args.y.cols)};
  run_experts(shared, pool());
  const std::vector<int64_t>& places = place;  // this thread's, for the workers
  pool().parallel_for(args.z.rows, 8, [&args, &shared, &places](int64_t begin, int64_t end) {
    const int64_t width = args.y.cols;
    for (int64_t t = begin; t < end; ++t) {
      const int64_t* of_token = places.data() + t * args.top_k;
      sum_choices(
          args.weights + t * args.top_k, args.top_k, [&](int64_t j) { return shared.outputs + of_token[j] * width; },
          width, shared.round, args.y.row(t));
    }
  });
}

void CpuOps::combine_experts(const CombineArgs& args) const {
  pool().parallel_for(args.out.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      sum_choices(
          args.weights + t * args.top_k, args.top_k, [&](int64_t j) { return args.y.row(t * args.top_k + j); },
          args.out.cols, precision() == Precision::bf16, args.out.row(t));
    }
  });
}

}  // namespace trireme::ops::cpu
