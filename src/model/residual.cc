#include "model/residual.h"

#include <algorithm>

namespace trireme::model {

ConstRows ResidualStream::mix(const std::optional<Vector>& score, Rows out) const {
  if (bank_.empty()) return prefix_;
  pass_.ops.residual_mix(bank_, prefix_, score->data(), pass_.config.eps, out);
  return out;
}

void ResidualStream::enter_layer(int64_t layer) {
  if (!pass_.config.residual_block || layer % *pass_.config.residual_block != 0) return;
  bank_.push_back(prefix_);
  prefix_ = pass_.workspace.rows(prefix_.rows, prefix_.cols);
  restart_ = true;
}

void ResidualStream::add(ConstRows result) {
  if (restart_) {
    for (int64_t r = 0; r < result.rows; ++r) std::copy_n(result.row(r), result.cols, prefix_.row(r));
    restart_ = false;
  } else {
    pass_.ops.add(prefix_, result, prefix_);
  }
}

}  // namespace trireme::model
