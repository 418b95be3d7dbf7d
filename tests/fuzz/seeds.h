// Seeds out of code instead of a folder of files: now and then the mutator begins again from one of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/rng.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace trireme::fuzz {

// The body of a target's LLVMFuzzerCustomMutator.
inline size_t mutate_from_seeds(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                                std::span<const std::string> seeds) {
  const uint64_t draw = mix64(seed);
  if (size <= 1 || draw % 64 == 0) {
    const std::string& start = seeds[(draw >> 8) % seeds.size()];
    size = std::min(start.size(), max_size);
    std::memcpy(data, start.data(), size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace trireme::fuzz
