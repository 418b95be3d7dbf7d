#include "model/recorder.h"

namespace trireme::model {
namespace {

std::vector<int64_t> shape_of(ConstRows rows, const std::vector<int64_t>& inner) {
  std::vector<int64_t> shape{rows.rows};
  if (inner.empty()) shape.push_back(rows.cols);
  shape.insert(shape.end(), inner.begin(), inner.end());
  return shape;
}

void append(TraceTensor& tensor, ConstRows rows) {
  for (int64_t r = 0; r < rows.rows; ++r)
    tensor.values.insert(tensor.values.end(), rows.row(r), rows.row(r) + rows.cols);
}

// Makes room for one more entry of `shape` along the leading dimension.
void grow(TraceTensor& tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape.empty()) {
    tensor.shape.push_back(0);
    tensor.shape.insert(tensor.shape.end(), shape.begin(), shape.end());
  }
  ++tensor.shape.front();
}

}  // namespace

void Recorder::single(const std::string& name, ConstRows rows, const std::vector<int64_t>& inner) const {
  if (trace_ == nullptr) return;
  TraceTensor tensor;
  tensor.shape = shape_of(rows, inner);
  append(tensor, rows);
  trace_->tensors[name] = std::move(tensor);
}

void Recorder::first(const std::string& name, ConstRows rows, const std::vector<int64_t>& inner) const {
  if (trace_ != nullptr && !trace_->tensors.contains(name)) single(name, rows, inner);
}

void Recorder::stack(const std::string& name, ConstRows rows, const std::vector<int64_t>& inner) const {
  if (trace_ == nullptr) return;
  TraceTensor& tensor = trace_->tensors[name];
  grow(tensor, shape_of(rows, inner));
  append(tensor, rows);
}

void Recorder::stack_ids(const std::string& name, const int32_t* ids, int64_t rows, int64_t cols) const {
  if (trace_ == nullptr) return;
  TraceTensor& tensor = trace_->tensors[name];
  tensor.integer = true;
  grow(tensor, {rows, cols});
  for (int64_t i = 0; i < rows * cols; ++i) tensor.values.push_back(static_cast<float>(ids[i]));
}

void Recorder::list(const std::string& name, int64_t value) const {
  if (trace_ == nullptr) return;
  TraceTensor& tensor = trace_->tensors[name];
  tensor.integer = true;
  if (tensor.shape.empty()) tensor.shape.push_back(0);
  ++tensor.shape.front();
  tensor.values.push_back(static_cast<float>(value));
}

}  // namespace trireme::model
