// Working memory of matrix products, kept by each thread between calls so that no call pays for fresh pages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tensor/buffer.h"

namespace trireme::ops::cpu {

class Scratch {
 public:
  // At least `bytes` of 64-byte aligned memory, with whatever was in it. Valid until the next call.
  std::byte* get(int64_t bytes) {
    if (bytes > buffer_.bytes()) {
      buffer_ = Buffer();
      buffer_ = Buffer(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes))));
    }
    return buffer_.data();
  }
  float* floats(int64_t count) { return reinterpret_cast<float*>(get(count * 4)); }

 private:
  Buffer buffer_;
};

}  // namespace trireme::ops::cpu
