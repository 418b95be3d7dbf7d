// Memory of intermediate results, kept from one forward pass to the next so that it is allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/matrix.h"

namespace trireme::model {

// A stack of uninitialised arrays. Memory lives until the Scope in which it was taken ends. Not thread-safe.
class Workspace {
 public:
  // A matrix whose rows start on cache lines.
  Rows rows(int64_t count, int64_t cols);
  std::span<float> floats(int64_t count);
  std::span<int32_t> ints(int64_t count);

  // Gives back on destruction what was taken since its construction. Scopes nest.
  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Scope() { workspace_.rewind(block_, used_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    int64_t used_;
  };

 private:
  std::byte* take(int64_t bytes);
  void rewind(size_t block, int64_t used) {
    block_ = block;
    used_ = used;
  }
  void merge();

  std::vector<Buffer> blocks_;
  size_t block_ = 0;  // the block in use
  int64_t used_ = 0;  // bytes of it taken
};

}  // namespace trireme::model
