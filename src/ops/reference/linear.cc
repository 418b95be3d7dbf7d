// Matrix products. A packed matrix is the checkpoint's bytes, weights first and scales after them; f16 is widened to
// f32.
#include <cstring>
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {
namespace {

WeightFormat stored_format(WeightFormat format) { return format == WeightFormat::f16 ? WeightFormat::f32 : format; }

// The packed bytes seen as a checkpoint's matrix again.
WeightView view_of(const PackedMatrix& w) {
  const std::span<const std::byte> bytes = w.storage.as<std::byte>();
  auto data = static_cast<size_t>(w.rows * w.cols);
  if (w.format == WeightFormat::f32) data *= 4;
  if (w.format == WeightFormat::bf16) data *= 2;
  if (w.format == WeightFormat::mxfp4) data /= 2;
  return {w.format, w.rows, w.cols, bytes.first(data), bytes.subspan(data)};
}

}  // namespace

void widen_row(const PackedMatrix& w, int64_t row, float* out) {
  const WeightView view = view_of(w);
  for (int64_t c = 0; c < w.cols; ++c) out[c] = weight_at(view, row, c);
}

int64_t ReferenceOps::packed_bytes(WeightFormat format, int64_t rows, int64_t cols) const {
  return weight_bytes(stored_format(format), rows, cols);
}

PackedMatrix ReferenceOps::pack(const WeightView& w, Buffer storage) const {
  const std::span<std::byte> bytes = storage.as<std::byte>();
  if (w.format == WeightFormat::f16) {
    widen(w, storage.as<float>());
  } else if (!bytes.empty()) {
    std::memcpy(bytes.data(), w.data.data(), w.data.size());
    if (!w.scales.empty()) std::memcpy(bytes.data() + w.data.size(), w.scales.data(), w.scales.size());
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
