// Fills a Trace during a forward pass; does nothing when none is wanted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/trace.h"
#include "tensor/matrix.h"

namespace trireme::model {

class Recorder {
 public:
  explicit Recorder(Trace* trace) : trace_(trace) {}

  explicit operator bool() const { return trace_ != nullptr; }

  // One tensor [rows, inner...]; the product of `inner` is rows.cols. An empty `inner` means rows.cols.
  void single(const std::string& name, ConstRows rows, const std::vector<int64_t>& inner = {}) const;
  // The same, unless the name is there already: for tensors that only the first layer of a kind gives.
  void first(const std::string& name, ConstRows rows, const std::vector<int64_t>& inner = {}) const;
  // Appends along a new leading dimension, one entry a call.
  void stack(const std::string& name, ConstRows rows, const std::vector<int64_t>& inner = {}) const;
  void stack_ids(const std::string& name, const int32_t* ids, int64_t rows, int64_t cols) const;
  // Appends one number to a list of layer numbers.
  void list(const std::string& name, int64_t value) const;

 private:
  Trace* trace_;
};

}  // namespace trireme::model
