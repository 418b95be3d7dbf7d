// Views of row-major activations. Activations are float32 in memory in either precision; in bf16 precision the values
// are ones that bfloat16 can hold (docs/numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {

// rows x cols elements; row r begins at data + r * stride. Does not own.
template <class T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from row to row, >= cols

  T* row(int64_t r) const { return data + r * stride; }
  // Columns [begin, begin + count) of the same rows.
  MatrixView columns(int64_t begin, int64_t count) const { return {data + begin, rows, count, stride}; }
  // Rows [begin, begin + count).
  MatrixView row_range(int64_t begin, int64_t count) const { return {data + begin * stride, count, cols, stride}; }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }
};

using Rows = MatrixView<float>;
using ConstRows = MatrixView<const float>;

// A dense float matrix that owns its memory.
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols), values_(static_cast<size_t>(rows * cols)) {}

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  float* data() { return values_.data(); }
  const float* data() const { return values_.data(); }
  Rows view() { return {values_.data(), rows_, cols_, cols_}; }
  ConstRows view() const { return {values_.data(), rows_, cols_, cols_}; }

 private:
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::vector<float> values_;
};

}  // namespace trireme
