// Tensors of a safetensors file as plain numbers, and how far two rows are apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "tensor/dtype.h"

namespace trireme::testing {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;

  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const { return static_cast<int64_t>(values.size()) / std::max<int64_t>(cols(), 1); }
  std::span<const float> row(int64_t r) const {
    return std::span<const float>(values).subspan(static_cast<size_t>(r * cols()), static_cast<size_t>(cols()));
  }
};

// A file of F32 and I32 tensors, as golden files are.
class TensorFile {
 public:
  explicit TensorFile(const std::filesystem::path& path) : file_(path) {}

  bool has(const std::string& name) const { return file_.tensors().contains(name); }
  const std::map<std::string, checkpoint::TensorInfo>& tensors() const { return file_.tensors(); }

  Tensor get(const std::string& name) const {
    const checkpoint::TensorInfo& info = file_.tensors().at(name);
    const std::span<const std::byte> bytes = file_.bytes(info);
    Tensor t{info.shape, std::vector<float>(bytes.size() / 4)};
    if (info.dtype == DType::f32) {
      std::memcpy(t.values.data(), bytes.data(), bytes.size());
    } else {
      for (size_t i = 0; i < t.values.size(); ++i) t.values[i] = static_cast<float>(integer(bytes, i));
    }
    return t;
  }

  std::vector<int32_t> ids(const std::string& name) const {
    const std::span<const std::byte> bytes = file_.bytes(file_.tensors().at(name));
    std::vector<int32_t> ids(bytes.size() / 4);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = integer(bytes, i);
    return ids;
  }

 private:
  static int32_t integer(std::span<const std::byte> bytes, size_t index) {
    int32_t value = 0;
    std::memcpy(&value, bytes.data() + index * 4, 4);
    return value;
  }

  checkpoint::SafetensorsFile file_;
};

// ||a - b|| / ||b||; infinite if a holds a NaN.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double error = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

inline int64_t argmax(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// The largest value minus the second largest.
inline double top_gap(std::span<const float> row) {
  std::vector<float> sorted(row.begin(), row.end());
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return static_cast<double>(*std::max_element(row.begin(), row.end())) - static_cast<double>(sorted[1]);
}

inline std::filesystem::path source_dir() { return TRIREME_SOURCE_DIR; }
// Golden files kept beside the source tree; a test that needs them skips when they are not there.
inline std::filesystem::path shared_dir() { return source_dir() / ".." / "shared"; }

}  // namespace trireme::testing
