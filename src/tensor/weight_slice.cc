// Parts of a weight matrix: rows as a view, columns as a copy.
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "tensor/weight.h"

namespace trireme {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_range(const char* what, int64_t begin, int64_t count, int64_t of) {
  if (begin < 0 || count < 0 || begin > of - count) {
    throw Failure(fmt::format("{} [{}, {}) were asked of a weight matrix that has {}", what, begin, begin + count, of));
  }
}

std::span<const std::byte> part(std::span<const std::byte> bytes, int64_t begin, int64_t count) {
  return bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

// Bytes of `elements` codes.
int64_t code_bytes(WeightFormat format, int64_t elements) {
  switch (format) {
    case WeightFormat::f32:
      return elements * 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return elements * 2;
    case WeightFormat::fp8_block:
      return elements;
    case WeightFormat::mxfp4:
      return elements / 2;
  }
  return 0;
}

// Bytes [begin, begin + count) of each of `rows` rows of `row_bytes`, close together.
std::vector<std::byte> cut_columns(std::span<const std::byte> bytes, int64_t rows, int64_t row_bytes, int64_t begin,
                                   int64_t count) {
  std::vector<std::byte> cut(static_cast<size_t>(rows * count));
  for (int64_t r = 0; r < rows && count > 0; ++r) {
    std::memcpy(cut.data() + r * count, bytes.data() + r * row_bytes + begin, static_cast<size_t>(count));
  }
  return cut;
}

std::vector<std::byte> widen_columns(const WeightView& w, int64_t begin, int64_t count) {
  std::vector<std::byte> values(static_cast<size_t>(w.rows * count) * sizeof(float));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows && count > 0; ++r) {
    widen_rows(w, r, 1, row);
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    std::memcpy(values.data() + static_cast<size_t>(r) * bytes, row.data() + begin, bytes);
  }
  return values;
}

}  // namespace

WeightView rows_of(const WeightView& w, int64_t begin, int64_t count) {
  check_range("rows", begin, count, w.rows);
  WeightView rows = w;
  rows.rows = count;
  rows.data = part(w.data, code_bytes(w.format, begin * w.cols), code_bytes(w.format, count * w.cols));
  if (w.format == WeightFormat::mxfp4) {
    const int64_t blocks = w.cols / kMxBlock;
    rows.scales = part(w.scales, begin * blocks, count * blocks);
  }
  if (w.format == WeightFormat::fp8_block) {
    const int64_t first = begin + w.row_phase;
    const int64_t row_bytes = ceil_div(w.cols, kFp8Block) * static_cast<int64_t>(sizeof(float));
    rows.row_phase = first % kFp8Block;
    rows.scales =
        part(w.scales, first / kFp8Block * row_bytes, ceil_div(count + rows.row_phase, kFp8Block) * row_bytes);
  }
  return rows;
}

WeightFormat columns_format(WeightFormat format, int64_t cols, int64_t begin, int64_t count) {
  check_range("columns", begin, count, cols);
  const bool kept = (format != WeightFormat::fp8_block || begin % kFp8Block == 0) &&
                    (format != WeightFormat::mxfp4 || (begin % kMxBlock == 0 && count % kMxBlock == 0));
  return kept ? format : WeightFormat::f32;
}

OwnedWeight columns_of(const WeightView& w, int64_t begin, int64_t count) {
  OwnedWeight owned;
  owned.view.format = columns_format(w.format, w.cols, begin, count);
  owned.view.rows = w.rows;
  owned.view.cols = count;
  if (owned.view.format != w.format) {
    owned.data = widen_columns(w, begin, count);
  } else {
    owned.data = cut_columns(w.data, w.rows, code_bytes(w.format, w.cols), code_bytes(w.format, begin),
                             code_bytes(w.format, count));
  }
  if (owned.view.format == WeightFormat::mxfp4) {
    owned.scales = cut_columns(w.scales, w.rows, w.cols / kMxBlock, begin / kMxBlock, count / kMxBlock);
  }
  if (owned.view.format == WeightFormat::fp8_block) {
    constexpr int64_t kScale = sizeof(float);
    owned.view.row_phase = w.row_phase;
    owned.scales =
        cut_columns(w.scales, ceil_div(w.rows + w.row_phase, kFp8Block), ceil_div(w.cols, kFp8Block) * kScale,
                    begin / kFp8Block * kScale, ceil_div(count, kFp8Block) * kScale);
  }
  owned.view.data = owned.data;
  owned.view.scales = owned.scales;
  return owned;
}

}  // namespace trireme
