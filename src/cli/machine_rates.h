// What this machine reaches with nothing in the way: the yardsticks of `bench latency`.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "base/thread_pool.h"

namespace trireme::cli {

// Seconds that `body` takes.
template <class Body>
double seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes per second that all threads of `pool` read together: the best of several passes over 512 MiB, which is from
// memory unless the caches are larger than that.
double measure_read_rate(ThreadPool& pool);

// Operations per second, two a multiply-add, of independent chains of float32 FMA in registers on all threads: what the
// kernels of avx2 and avx512 use in both precisions. No value for other backends (amx, reference).
std::optional<double> measure_peak_flops(ThreadPool& pool, std::string_view isa);

}  // namespace trireme::cli
