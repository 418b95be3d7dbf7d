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
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace trireme
