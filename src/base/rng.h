// Counter-based random numbers: value = f(seed, position, stream), independent of batch, rank and replay.
#pragma once

#include <cstdint>

namespace trireme {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection of 64 bits that mixes every bit into every other.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A uniform number in [0, 1) with 53 random bits, a pure function of its three addresses.
constexpr double uniform_at(uint64_t seed, uint64_t position, uint64_t stream) {
  const uint64_t bits = mix64(mix64(mix64(seed) ^ position) ^ stream);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace trireme
