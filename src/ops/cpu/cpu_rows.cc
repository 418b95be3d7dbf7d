// Norms, residuals, gates and activations.
#include <algorithm>
#include <vector>

#include "ops/cpu/cpu_ops.h"

namespace trireme::ops::cpu {
namespace {

// Elements that are worth handing to another thread.
constexpr int64_t kGrainElements = 16384;
// Elementwise rows are also cut across, so that one wide row can use all threads.
constexpr int64_t kChunkColumns = 4096;

int64_t row_grain(int64_t elements_per_row) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, elements_per_row));
}

// Calls body(row, column, count) over pieces of rows x cols elements.
template <class Body>
void for_pieces(ThreadPool& pool, int64_t rows, int64_t cols, const Body& body) {
  const int64_t chunks = (cols + kChunkColumns - 1) / kChunkColumns;
  pool.parallel_for(rows * chunks, row_grain(std::min(cols, kChunkColumns)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % chunks * kChunkColumns;
      body(i / chunks, column, std::min(kChunkColumns, cols - column));
    }
  });
}

}  // namespace

void CpuOps::rms_norm(ConstRows x, const float* w, float eps, Rows y) const {
  const bool round = precision() == Precision::bf16;
  pool().parallel_for(x.rows, row_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row_kernels_.rms_norm_row(x.row(t), w, eps, x.cols, round, y.row(t));
  });
}

void CpuOps::residual_mix(std::span<const ConstRows> bank, ConstRows prefix, const float* score, float eps,
                          Rows y) const {
  const bool round = precision() == Precision::bf16;
  const auto count = static_cast<int64_t>(bank.size()) + 1;
  pool().parallel_for(prefix.rows, row_grain(prefix.cols * count), [&](int64_t begin, int64_t end) {
    std::vector<const float*> sources(bank.size() + 1);
    std::vector<float> weights(bank.size() + 1);
    for (int64_t t = begin; t < end; ++t) {
      for (size_t i = 0; i < bank.size(); ++i) sources[i] = bank[i].row(t);
      sources.back() = prefix.row(t);
      row_kernels_.residual_mix_row(sources.data(), count, score, eps, prefix.cols, round, weights.data(), y.row(t));
    }
  });
}

void CpuOps::add(ConstRows a, ConstRows b, Rows y) const {
  const bool round = precision() == Precision::bf16;
  for_pieces(pool(), a.rows, a.cols, [&](int64_t t, int64_t c, int64_t n) {
    row_kernels_.add_row(a.row(t) + c, b.row(t) + c, n, round, y.row(t) + c);
  });
}

void CpuOps::sigmoid_gate(ConstRows x, ConstRows gate, Rows y) const {
  const bool round = precision() == Precision::bf16;
  for_pieces(pool(), x.rows, x.cols, [&](int64_t t, int64_t c, int64_t n) {
    row_kernels_.sigmoid_gate_row(x.row(t) + c, gate.row(t) + c, n, round, y.row(t) + c);
  });
}

void CpuOps::gated_rms_norm(ConstRows x, const float* w, ConstRows gate, int64_t dim, float eps, Rows y) const {
  const bool round = precision() == Precision::bf16;
  const int64_t heads = x.cols / dim;
  pool().parallel_for(x.rows * heads, row_grain(dim), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads;
      const int64_t c = i % heads * dim;
      row_kernels_.gated_rms_norm_row(x.row(t) + c, w, gate.row(t) + c, dim, eps, round, y.row(t) + c);
    }
  });
}

void CpuOps::glu(ConstRows gate, ConstRows up, const Glu& glu, Rows y) const {
  const bool round = precision() == Precision::bf16;
  for_pieces(pool(), gate.rows, gate.cols, [&](int64_t t, int64_t c, int64_t n) {
    row_kernels_.glu_row(gate.row(t) + c, up.row(t) + c, n, glu, round, y.row(t) + c);
  });
}

}  // namespace trireme::ops::cpu
