// Matrix products and embeddings: layouts and the cutting of work. The arithmetic is in linear_<isa>.cc.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/numeric.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/linear_layout.h"
#include "ops/cpu/linear_plan.h"
#include "ops/cpu/linear_scratch.h"
#include "ops/cpu/pack_panels.h"

namespace trireme::ops::cpu {
namespace {

WeightFormat packed_format(WeightFormat format) { return format == WeightFormat::f16 ? WeightFormat::f32 : format; }

// The rows in the order the kernels want, in the calling thread's scratch or where they are.
const void* arrange_rows(const LinearPath& path, ConstRows x, ThreadPool& pool) {
  if (x.rows == 1 && path.single_in_place) return x.row(0);
  thread_local Scratch scratch;
  thread_local std::vector<const float*> pointers;
  pointers.resize(static_cast<size_t>(x.rows));
  for (int64_t r = 0; r < x.rows; ++r) pointers[static_cast<size_t>(r)] = x.row(r);
  std::byte* packed = scratch.get(path.rows_bytes(x.rows, x.cols));
  const float* const* rows = pointers.data();  // the workers must not look up their own thread's vector
  const int64_t tiles = (x.rows + path.tile_rows - 1) / path.tile_rows;
  constexpr int64_t kValuesWorthAThread = 32 * 1024;
  const int64_t grain = std::max<int64_t>(1, kValuesWorthAThread / (path.tile_rows * std::max<int64_t>(1, x.cols)));
  pool.parallel_for(tiles, grain,
                    [&](int64_t begin, int64_t end) { path.pack_rows(rows, x.rows, x.cols, begin, end, packed); });
  return packed;
}

float element(const EmbeddingTable& table, const std::byte* row, int64_t d) {
  if (table.format == WeightFormat::f32) {
    float value = 0;
    std::memcpy(&value, row + d * 4, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, row + d * 2, 2);
  return table.format == WeightFormat::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

}  // namespace

int64_t CpuOps::packed_bytes(WeightFormat format, int64_t rows, int64_t cols) const {
  return panel_layout(packed_format(format), rows, cols).bytes();
}

PackedMatrix CpuOps::pack(const WeightView& w, Buffer storage) const {
  const int64_t wanted = packed_bytes(w.format, w.rows, w.cols);
  if (storage.bytes() != wanted) {
    throw Failure(fmt::format("packing a {} matrix of {} x {} was given {} bytes; it takes {}",
                              weight_format_name(w.format), w.rows, w.cols, storage.bytes(), wanted));
  }
  if (w.format == WeightFormat::mxfp4 && w.cols % kMxBlock != 0) {
    throw BadInput(fmt::format("an mxfp4 matrix of {} x {} has {} inputs; they must be a multiple of {}", w.rows,
                               w.cols, w.cols, kMxBlock));
  }
  std::byte* panels = storage.data();
  const PanelLayout layout = panel_layout(packed_format(w.format), w.rows, w.cols);
  const int64_t grain = std::max<int64_t>(1, (int64_t{256} << 10) / std::max<int64_t>(1, layout.panel_bytes));
  pool().parallel_for(layout.panels, grain, [&](int64_t begin, int64_t end) { pack_panels(w, begin, end, panels); });
  return {packed_format(w.format), w.rows, w.cols, std::move(storage)};
}

void CpuOps::linear(ConstRows x, const PackedMatrix& w, Rows y, Output output) const {
  if (x.rows == 0 || w.rows == 0) return;
  const bool rounds = precision() == Precision::bf16 && output == Output::rounded;
  const LinearPath& path = rounds && w.format != WeightFormat::f32 ? *linear_kernels_.bf16 : *linear_kernels_.exact;
  LinearJob job;
  job.format = w.format;
  job.outputs = w.rows;
  job.inputs = w.cols;
  job.panels = w.storage.data();
  job.layout = panel_layout(w.format, w.rows, w.cols);
  job.rows = arrange_rows(path, x, pool());
  job.row_count = x.rows;
  job.y = y.data;
  job.y_stride = y.stride;
  job.round = rounds;
  const LinearPlan plan = plan_linear(path, job, pool().threads());
  pool().parallel_for(plan.items(), 1, [&](int64_t begin, int64_t end) {
    thread_local Scratch scratch;
    std::byte* memory = scratch.get(path.scratch_bytes(job));
    for (int64_t i = begin; i < end; ++i) plan.run(path, job, i, memory);
  });
}

void CpuOps::embed(std::span<const int32_t> tokens, const EmbeddingTable& table, Rows y) const {
  const int64_t row_bytes = weight_bytes(table.format, 1, table.cols);
  const bool rounds = precision() == Precision::bf16 && table.format != WeightFormat::bf16;
  pool().parallel_for(static_cast<int64_t>(tokens.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::byte* row = table.storage.data() + tokens[static_cast<size_t>(t)] * row_bytes;
      float* out = y.row(t);
      for (int64_t d = 0; d < table.cols; ++d) {
        const float value = element(table, row, d);
        out[d] = rounds ? round_to_bf16(value) : value;
      }
    }
  });
}

}  // namespace trireme::ops::cpu
