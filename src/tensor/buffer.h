// Owned host memory, 64-byte aligned so that a vector load never crosses a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace trireme {

struct FreeMemory {
  bool owned = true;
  void operator()(std::byte* p) const {
    if (owned) std::free(p);
  }
};

class Buffer {
 public:
  Buffer() = default;
  // `bytes` of zeroed memory. Throws std::bad_alloc.
  explicit Buffer(int64_t bytes) : bytes_(bytes) {
    if (bytes <= 0) return;
    const size_t padded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, padded)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, padded);
  }

  // Memory that someone else owns and keeps longer: a part of a larger buffer.
  static Buffer borrow(std::byte* data, int64_t bytes) {
    Buffer part;
    part.data_ = {data, FreeMemory{false}};
    part.bytes_ = bytes;
    return part;
  }

  int64_t bytes() const { return bytes_; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }

  // The memory as elements of T.
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_.get()), static_cast<size_t>(bytes_) / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_.get()), static_cast<size_t>(bytes_) / sizeof(T)};
  }

 private:
  std::unique_ptr<std::byte, FreeMemory> data_;
  int64_t bytes_ = 0;
};

}  // namespace trireme
