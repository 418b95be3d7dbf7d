// The KDA recurrence, with the heads of a mid-sized model (14) and of K3 (96): time per token and layer, multiply-adds
// and bytes of state per second. Shares of the machine's peak follow from the rates that `trireme doctor` prints.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/select.h"

namespace trireme::ops {
namespace {

constexpr int64_t kDim = 128;

Matrix random_rows(int64_t rows, int64_t cols, uint64_t seed, double low, double high) {
  Matrix m(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    m.data()[i] = static_cast<float>(low + (high - low) * uniform_at(seed, static_cast<uint64_t>(i), 0));
  }
  return m;
}

// Each of `sequences` has `rows` rows and a state of its own, updated in place.
void kda(benchmark::State& state) {
  const int64_t heads = state.range(0);
  const int64_t sequences = state.range(1);
  const int64_t rows = state.range(2);
  ThreadPool pool(static_cast<int>(state.range(3)));
  const auto ops = make_ops("auto", Precision::bf16, pool);
  const int64_t width = heads * kDim;
  const int64_t total = sequences * rows;
  const Matrix q = random_rows(total, width, 1, -0.02, 0.02);
  const Matrix k = random_rows(total, width, 2, -0.15, 0.15);
  const Matrix v = random_rows(total, width, 3, -1, 1);
  const Matrix decay = random_rows(total, width, 4, -0.5, 0);
  const Matrix beta = random_rows(total, heads, 5, 0, 1);
  Matrix out(total, width);
  const int64_t state_floats = width * kDim;
  Buffer states(sequences * state_floats * 4);
  std::vector<KdaSegment> segments;
  for (int64_t s = 0; s < sequences; ++s) {
    float* at = states.as<float>().data() + s * state_floats;
    segments.push_back({s * rows, rows, at, at, {}});
  }
  for (auto _ : state) {
    ops->kda({heads, kDim, q.view(), k.view(), v.view(), decay.view(), beta.view(), out.view(), segments});
    benchmark::ClobberMemory();
  }
  const auto tokens = static_cast<double>(state.iterations() * total);
  const double elements = tokens * static_cast<double>(state_floats);
  state.SetLabel(std::string(ops->name()));
  state.counters["us/token"] =
      benchmark::Counter(tokens / 1e6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["GFMA/s"] = benchmark::Counter(4e-9 * elements, benchmark::Counter::kIsRate);
  state.counters["stateGB/s"] =
      benchmark::Counter(8e-9 * elements / static_cast<double>(rows), benchmark::Counter::kIsRate);
}
BENCHMARK(kda)
    ->ArgNames({"heads", "sequences", "rows", "threads"})
    ->ArgsProduct({{14, 96}, {1}, {1, 64, 512}, {1, 2}})
    ->Args({14, 8, 1, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void short_conv(benchmark::State& state) {
  const int64_t channels = state.range(0);
  const int64_t rows = state.range(1);
  ThreadPool pool(2);
  const auto ops = make_ops("auto", Precision::bf16, pool);
  const Matrix x = random_rows(rows, channels, 1, -1, 1);
  const Matrix w = random_rows(channels, 4, 2, -1, 1);
  Matrix y(rows, channels);
  std::vector<float> history(static_cast<size_t>(3 * channels));
  const ConvSegment segment{0, rows, history.data(), history.data()};
  for (auto _ : state) {
    ops->short_conv({x.view(), w.data(), 4, {&segment, 1}, y.view()});
    benchmark::ClobberMemory();
  }
  state.counters["us/token"] = benchmark::Counter(static_cast<double>(state.iterations() * rows) / 1e6,
                                                  benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(short_conv)
    ->ArgNames({"channels", "rows"})
    ->ArgsProduct({{5376}, {1, 512}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void kda_prepare(benchmark::State& state) {
  const int64_t heads = state.range(0);
  const int64_t rows = state.range(1);
  const int64_t width = heads * kDim;
  ThreadPool pool(2);
  const auto ops = make_ops("auto", Precision::bf16, pool);
  Matrix q = random_rows(rows, width, 1, -1, 1);
  Matrix k = random_rows(rows, width, 2, -1, 1);
  const Matrix z = random_rows(rows, width, 3, -1, 1);
  const Matrix b = random_rows(rows, heads, 4, -1, 1);
  const std::vector<float> a_log(static_cast<size_t>(heads), 0.1F);
  const std::vector<float> dt_bias(static_cast<size_t>(width), 0.1F);
  Matrix decay(rows, width), beta(rows, heads);
  for (auto _ : state) {
    ops->kda_prepare({heads,
                      kDim,
                      {a_log.data(), dt_bias.data(), true, -5.0F},
                      q.view(),
                      k.view(),
                      z.view(),
                      b.view(),
                      decay.view(),
                      beta.view()});
    benchmark::ClobberMemory();
  }
  state.counters["us/token"] = benchmark::Counter(static_cast<double>(state.iterations() * rows) / 1e6,
                                                  benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(kda_prepare)
    ->ArgNames({"heads", "rows"})
    ->ArgsProduct({{14}, {1, 512}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trireme::ops

BENCHMARK_MAIN();
