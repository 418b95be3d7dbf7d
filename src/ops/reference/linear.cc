// Matrix products. A packed matrix is the checkpoint's bytes, weights first and scales after them; f16 is widened to
// f32.
#include <algorithm>
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {
namespace {

WeightFormat stored_format(WeightFormat format) { return format == WeightFormat::f16 ? WeightFormat::f32 : format; }

// Bytes of one packed row: its codes, and its scales. Unlike the checkpoint, every row of an fp8 matrix has its own
// scales, since a slice of a matrix may begin inside a block.
struct RowBytes {
  int64_t codes = 0;
  int64_t scales = 0;
};

RowBytes row_bytes(WeightFormat format, int64_t cols) {
  const int64_t total = weight_bytes(format, 1, cols);
  if (format == WeightFormat::fp8_block) return {cols, total - cols};
  if (format == WeightFormat::mxfp4) return {cols / 2, total - cols / 2};
  return {total, 0};
}

// One packed row seen as a checkpoint's matrix of one row.
WeightView view_of_row(const PackedMatrix& w, int64_t row) {
  const RowBytes bytes = row_bytes(w.format, w.cols);
  const std::span<const std::byte> all = w.storage.as<std::byte>();
  const auto part = [&](int64_t begin, int64_t count) {
    return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  };
  return {w.format, 1, w.cols, part(row * bytes.codes, bytes.codes),
          part(w.rows * bytes.codes + row * bytes.scales, bytes.scales)};
}

}  // namespace

void widen_row(const PackedMatrix& w, int64_t row, float* out) {
  const WeightView view = view_of_row(w, row);
  for (int64_t c = 0; c < w.cols; ++c) out[c] = weight_at(view, 0, c);
}

int64_t ReferenceOps::packed_bytes(WeightFormat format, int64_t rows, int64_t cols) const {
  const RowBytes bytes = row_bytes(stored_format(format), cols);
  return rows * (bytes.codes + bytes.scales);
}

PackedMatrix ReferenceOps::pack(const WeightView& w, Buffer storage) const {
  const std::span<std::byte> bytes = storage.as<std::byte>();
  if (w.format == WeightFormat::f16) {
    widen(w, storage.as<float>());
  } else {
    const int64_t codes = w.rows * row_bytes(w.format, w.cols).codes;
    std::copy_n(w.data.begin(), codes, bytes.begin());
    for (int64_t r = 0; r < w.rows; ++r) {
      const std::span<const std::byte> scales = rows_of(w, r, 1).scales;
      std::copy(scales.begin(), scales.end(), bytes.begin() + codes + r * static_cast<int64_t>(scales.size()));
    }
  }
  return {stored_format(w.format), w.rows, w.cols, std::move(storage)};
}

void ReferenceOps::linear(ConstRows x, const PackedMatrix& w, Rows y, Output output) const {
  // By output, so that each row of weights is decoded once.
  pool().parallel_for(w.rows, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(static_cast<size_t>(w.cols));
    for (int64_t r = begin; r < end; ++r) {
      widen_row(w, r, weights.data());
      for (int64_t t = 0; t < x.rows; ++t) {
        const double product = dot(x.row(t), weights.data(), w.cols);
        y.row(t)[r] = output == Output::f32 ? static_cast<float>(product) : rounded(product);
      }
    }
  });
}

void ReferenceOps::embed(std::span<const int32_t> tokens, const EmbeddingTable& table, Rows y) const {
  const WeightView view{table.format, table.rows, table.cols, table.storage.as<std::byte>(), {}};
  each_row(static_cast<int64_t>(tokens.size()), [&](int64_t t) {
    for (int64_t d = 0; d < table.cols; ++d) y.row(t)[d] = rounded(weight_at(view, tokens[static_cast<size_t>(t)], d));
  });
}

}  // namespace trireme::ops::reference
