// What this machine reaches with nothing in the way: the yardsticks of `bench latency`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/thread_pool.h"
#include "ops/ops.h"

namespace trireme::cli {

// Bytes per second that all threads of `pool` read from memory together: the best of several passes over a block that
// no cache holds.
double measure_read_rate(ThreadPool& pool);

// Multiply-adds per second, counted as two operations each, of independent chains in registers on all threads: bfloat16
// dot products (AVX-512) in bf16 precision, float32 FMA otherwise. No value for a backend whose instructions this does
// not know (amx, reference).
std::optional<double> measure_peak_flops(ThreadPool& pool, std::string_view isa, ops::Precision precision);

}  // namespace trireme::cli
