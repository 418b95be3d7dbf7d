// Matrix products beside what the machine can do: bytes read per second as a share of its measured read rate, and
// arithmetic as a share of its measured FMA peak. Weights come from enough copies of a matrix that no cache holds them.
//
//   bench_linear [--threads=N] [google-benchmark flags, e.g. --benchmark_filter=bf16/4832x1024]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/numeric.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "ops/ops.h"
#include "ops/select.h"

namespace trireme::ops {
namespace {

constexpr int64_t kColdBytes = int64_t{640} << 20;

double seconds_of(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// ---- what the machine can do

// Bytes a second of reading cold memory, all threads together; the best of several.
double measure_read_rate(ThreadPool& pool) {
  const Buffer memory(kColdBytes);
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::atomic<uint64_t> sink = 0;
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    const double seconds = seconds_of([&] {
      pool.parallel_for(kColdBytes / kPiece, 4, [&](int64_t begin, int64_t end) {
        const auto* words = reinterpret_cast<const uint64_t*>(memory.data());
        uint64_t sums[8] = {};
        for (int64_t w = begin * kPiece / 8; w < end * kPiece / 8; w += 8) {
          for (int64_t j = 0; j < 8; ++j) sums[j] += words[w + j];
        }
        for (const uint64_t s : sums) sink += s;
      });
    });
    best = std::max(best, static_cast<double>(kColdBytes) / seconds);
  }
  return best;
}

// Ten fused multiply-adds that do not wait for each other, over and over.
__attribute__((target("avx512f"))) void spin_fma_512(int64_t count) {
  __asm__ volatile(
      "1:\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm0\n vfmadd231ps %%zmm30, %%zmm31, %%zmm1\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm2\n vfmadd231ps %%zmm30, %%zmm31, %%zmm3\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm4\n vfmadd231ps %%zmm30, %%zmm31, %%zmm5\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm6\n vfmadd231ps %%zmm30, %%zmm31, %%zmm7\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm8\n vfmadd231ps %%zmm30, %%zmm31, %%zmm9\n"
      "dec %0\n jnz 1b\n"
      : "+r"(count)
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "cc");
}

__attribute__((target("fma"))) void spin_fma_256(int64_t count) {
  __asm__ volatile(
      "1:\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm0\n vfmadd231ps %%ymm14, %%ymm15, %%ymm1\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm2\n vfmadd231ps %%ymm14, %%ymm15, %%ymm3\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm4\n vfmadd231ps %%ymm14, %%ymm15, %%ymm5\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm6\n vfmadd231ps %%ymm14, %%ymm15, %%ymm7\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm8\n vfmadd231ps %%ymm14, %%ymm15, %%ymm9\n"
      "dec %0\n jnz 1b\n"
      : "+r"(count)
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "cc");
}

// Floating-point operations a second of float32 FMA, all threads together.
double measure_fma_peak(ThreadPool& pool) {
  if (!__builtin_cpu_supports("fma")) return 0;
  const bool wide = __builtin_cpu_supports("avx512f") != 0;
  constexpr int64_t kLoops = 4'000'000;
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    const double seconds = seconds_of([&] {
      pool.parallel_for(pool.threads(), 1,
                        [&](int64_t, int64_t) { wide ? spin_fma_512(kLoops) : spin_fma_256(kLoops); });
    });
    const double done = static_cast<double>(kLoops) * 10 * (wide ? 32 : 16) * pool.threads();
    best = std::max(best, done / seconds);
  }
  return best;
}

struct Machine {
  std::unique_ptr<ThreadPool> pool;
  double read_rate = 0;
  double fma_peak = 0;
};

// ---- data

struct Stored {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
};

// Random weights of sane size in the checkpoint's form.
Stored random_stored(WeightFormat format, int64_t rows, int64_t cols) {
  Stored s;
  const int64_t data_bytes = format == WeightFormat::fp8_block ? rows * cols
                             : format == WeightFormat::mxfp4   ? rows * cols / 2
                             : format == WeightFormat::bf16    ? rows * cols * 2
                                                               : rows * cols * 4;
  s.data.resize(static_cast<size_t>(data_bytes));
  s.scales.resize(static_cast<size_t>(weight_bytes(format, rows, cols) - data_bytes));
  for (int64_t i = 0; i < data_bytes; ++i)
    s.data[static_cast<size_t>(i)] = static_cast<std::byte>(mix64(static_cast<uint64_t>(i)) & 0x77);
  if (format == WeightFormat::bf16 || format == WeightFormat::f32) {
    const int64_t size = format == WeightFormat::bf16 ? 2 : 4;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const auto v = static_cast<float>(uniform_at(1, static_cast<uint64_t>(i), 0) - 0.5);
      const uint32_t bits = std::bit_cast<uint32_t>(v) >> (size == 2 ? 16 : 0);
      std::memcpy(s.data.data() + i * size, &bits, static_cast<size_t>(size));
    }
  }
  if (format == WeightFormat::mxfp4) std::fill(s.scales.begin(), s.scales.end(), std::byte{120});
  if (format == WeightFormat::fp8_block) {
    for (size_t i = 0; i + 4 <= s.scales.size(); i += 4) {
      const float scale = 0.01F;
      std::memcpy(s.scales.data() + i, &scale, 4);
    }
  }
  return s;
}

Matrix random_rows(int64_t rows, int64_t cols) {
  Matrix x(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    x.data()[i] = round_to_bf16(static_cast<float>(uniform_at(2, static_cast<uint64_t>(i), 0) - 0.5));
  }
  return x;
}

// Copies of one packed matrix that together outgrow the caches.
std::vector<PackedMatrix> cold_copies(const Ops& ops, WeightFormat format, int64_t rows, int64_t cols, int64_t bytes) {
  const Stored stored = random_stored(format, rows, cols);
  const WeightView view{format, rows, cols, stored.data, stored.scales};
  const int64_t packed = ops.packed_bytes(format, rows, cols);
  std::vector<PackedMatrix> copies;
  for (int64_t i = 0; i < std::max<int64_t>(1, bytes / packed); ++i) copies.push_back(ops.pack(view, Buffer(packed)));
  return copies;
}

// Calls call(i) for i = 0, 1, 2, ... and reports a fast call (the fifth percentile, since the machine may be shared
// with others), which read `bytes` and did `operations`.
template <class Call>
void run_calls(benchmark::State& state, const Machine& machine, double bytes, double operations, const Call& call) {
  std::vector<double> times;
  size_t i = 0;
  for (auto _ : state) {
    times.push_back(seconds_of([&] { call(i++); }));
    state.SetIterationTime(times.back());
  }
  const auto fast = times.begin() + static_cast<int64_t>(times.size() / 20);
  std::nth_element(times.begin(), fast, times.end());
  state.counters["fast_us"] = *fast * 1e6;
  state.counters["GB/s"] = bytes / *fast * 1e-9;
  state.counters["GFLOP/s"] = operations / *fast * 1e-9;
  state.counters["of_read"] = bytes / *fast / machine.read_rate;
  state.counters["of_fma"] = operations / *fast / machine.fma_peak;
}

// ---- benchmarks

void linear(benchmark::State& state, const Machine& machine, std::string_view isa, WeightFormat format, int64_t n,
            int64_t k, int64_t m) {
  const auto ops = make_ops(isa, Precision::bf16, *machine.pool);
  const auto copies = cold_copies(*ops, format, n, k, m > 64 ? int64_t{1} << 20 : kColdBytes / 2);
  const Matrix x = random_rows(m, k);
  Matrix y(m, n);
  run_calls(state, machine, static_cast<double>(copies[0].storage.bytes()), 2.0 * static_cast<double>(m * n * k),
            [&](size_t i) { ops->linear(x.view(), copies[i % copies.size()], y.view()); });
}

void pack(benchmark::State& state, const Machine& machine, std::string_view isa, WeightFormat format, int64_t n,
          int64_t k) {
  const auto ops = make_ops(isa, Precision::bf16, *machine.pool);
  const Stored stored = random_stored(format, n, k);
  const WeightView view{format, n, k, stored.data, stored.scales};
  Buffer storage(ops->packed_bytes(format, n, k));
  run_calls(state, machine, static_cast<double>(stored.data.size()), 0, [&](size_t) {
    PackedMatrix w = ops->pack(view, std::move(storage));
    storage = std::move(w.storage);
  });
}

// Layers of 128 experts of 512 -> 224 -> 512, eight chosen for each row.
void experts(benchmark::State& state, const Machine& machine, std::string_view isa, int64_t m) {
  constexpr int64_t kIn = 512, kInter = 224, kExperts = 128, kTopK = 8;
  const auto ops = make_ops(isa, Precision::bf16, *machine.pool);
  const int64_t layers = 7;  // 7 and the number of drawings have no common divisor
  std::vector<std::vector<Expert>> all;
  for (int64_t l = 0; l < layers; ++l) {
    auto gate = cold_copies(*ops, WeightFormat::mxfp4, kInter, kIn,
                            kExperts * ops->packed_bytes(WeightFormat::mxfp4, kInter, kIn));
    auto up = cold_copies(*ops, WeightFormat::mxfp4, kInter, kIn,
                          kExperts * ops->packed_bytes(WeightFormat::mxfp4, kInter, kIn));
    auto down = cold_copies(*ops, WeightFormat::mxfp4, kIn, kInter,
                            kExperts * ops->packed_bytes(WeightFormat::mxfp4, kIn, kInter));
    std::vector<Expert> layer(kExperts);
    for (size_t e = 0; e < kExperts; ++e) layer[e] = {std::move(gate[e]), std::move(up[e]), std::move(down[e])};
    all.push_back(std::move(layer));
  }
  const Matrix z = random_rows(m, kIn);
  Matrix y(m, kIn);
  std::vector<float> weights(static_cast<size_t>(m * kTopK), 0.125F);
  // Distinct experts for each row; several drawings so that a layer's experts come from memory.
  constexpr size_t kDrawings = 32;
  std::vector<std::vector<int32_t>> ids(kDrawings);
  double touched = 0;
  for (size_t d = 0; d < kDrawings; ++d) {
    std::vector<bool> seen(kExperts);
    for (int64_t i = 0; i < m * kTopK; ++i) {
      const auto start = static_cast<int64_t>(mix64(d * 1000 + static_cast<uint64_t>(i / kTopK)) % kExperts);
      ids[d].push_back(static_cast<int32_t>((start + i % kTopK * 37) % kExperts));
      seen[static_cast<size_t>(ids[d].back())] = true;
    }
    touched += static_cast<double>(std::count(seen.begin(), seen.end(), true));
  }
  const double expert_bytes = 2.0 * static_cast<double>(ops->packed_bytes(WeightFormat::mxfp4, kInter, kIn)) +
                              static_cast<double>(ops->packed_bytes(WeightFormat::mxfp4, kIn, kInter));
  const auto operations = static_cast<double>(m * kTopK) * 2 * 3 * kIn * kInter;
  run_calls(state, machine, touched / kDrawings * expert_bytes, operations, [&](size_t i) {
    const auto& drawing = ids[i % kDrawings];
    ops->experts({z.view(), drawing.data(), weights.data(), kTopK, all[i % all.size()], Glu{}, y.view()});
  });
}

void register_all(const Machine& machine, std::string_view isa) {
  const auto add = [](const std::string& name, const auto& body) {
    benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.3);
  };
  const auto add_linear = [&](WeightFormat format, int64_t n, int64_t k, int64_t m) {
    const std::string name = std::string(isa) + "/" + std::string(weight_format_name(format)) + "/" +
                             std::to_string(n) + "x" + std::to_string(k) + "/M" + std::to_string(m);
    add(name, [&machine, isa, format, n, k, m](benchmark::State& s) { linear(s, machine, isa, format, n, k, m); });
  };
  for (const int64_t m : {1, 2, 4, 8, 16, 64, 512}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1792, 1024}, {1024, 1792}, {4832, 1024}, {1024, 4832}, {20480, 1024}}) {
      add_linear(WeightFormat::bf16, n, k, m);
    }
    for (const WeightFormat f : {WeightFormat::f32, WeightFormat::fp8_block, WeightFormat::mxfp4})
      add_linear(f, 4832, 1024, m);
    add_linear(WeightFormat::bf16, 14, 1024, m);
    add(std::string(isa) + "/experts/M" + std::to_string(m),
        [&machine, isa, m](benchmark::State& s) { experts(s, machine, isa, m); });
  }
  for (const WeightFormat f : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
    add(std::string(isa) + "/pack/" + std::string(weight_format_name(f)),
        [&machine, isa, f](benchmark::State& s) { pack(s, machine, isa, f, 4832, 4096); });
  }
}

}  // namespace
}  // namespace trireme::ops

int main(int argc, char** argv) {
  int threads = 2;
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--threads=")) {
      threads = std::stoi(std::string(arg.substr(10)));
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
  trireme::ops::Machine machine;
  machine.pool = std::make_unique<trireme::ThreadPool>(threads);
  machine.read_rate = trireme::ops::measure_read_rate(*machine.pool);
  machine.fma_peak = trireme::ops::measure_fma_peak(*machine.pool);
  benchmark::AddCustomContext("read GB/s", std::to_string(machine.read_rate * 1e-9));
  benchmark::AddCustomContext("FMA GFLOP/s", std::to_string(machine.fma_peak * 1e-9));
  for (const std::string_view isa : trireme::ops::available_isas()) {
    if (isa != "reference") trireme::ops::register_all(machine, isa);
  }
  benchmark::RunSpecifiedBenchmarks();
}
