// Absorbed MLA attention, with the heads of a mid-sized model (14) and of K3 (96), width 576: time per token and layer,
// and multiply-adds per second over the (key, head) pairs that are visible.
#include <benchmark/benchmark.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/select.h"

namespace trireme::ops {
namespace {

constexpr int64_t kLatent = 512;
constexpr int64_t kWidth = 576;

Matrix random_rows(int64_t rows, int64_t cols, uint64_t seed) {
  Matrix m(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    m.data()[i] = round_to_bf16(static_cast<float>(uniform_at(seed, static_cast<uint64_t>(i), 0) - 0.5));
  }
  return m;
}

// `rows` new tokens after `position` earlier ones.
void mla(benchmark::State& state) {
  const int64_t heads = state.range(0);
  const int64_t position = state.range(1);
  const int64_t rows = state.range(2);
  ThreadPool pool(static_cast<int>(state.range(3)));
  const auto ops = make_ops("auto", Precision::bf16, pool);
  const int64_t tokens = position + rows;
  const int64_t page_count = (tokens + kPageTokens - 1) / kPageTokens;
  LatentPages pages{nullptr, DType::bf16, kWidth};
  Buffer storage(page_count * pages.page_bytes());
  pages.base = storage.data();
  std::vector<int32_t> table(static_cast<size_t>(page_count));
  std::iota(table.begin(), table.end(), 0);
  const Matrix latents = random_rows(tokens, kWidth, 1);
  const MlaSegment all{0, tokens, 0, table};
  ops->store_latent({latents.view(), pages, {&all, 1}});
  const Matrix q = random_rows(rows, heads * kWidth, 2);
  Matrix ctx(rows, heads * kLatent);
  const MlaSegment segment{0, rows, position, table};
  for (auto _ : state) {
    ops->mla({heads, kLatent, 0.07F, q.view(), pages, {&segment, 1}, ctx.view()});
    benchmark::ClobberMemory();
  }
  double pairs = 0;
  for (int64_t r = 0; r < rows; ++r) pairs += static_cast<double>(heads * (position + r + 1));
  const auto runs = static_cast<double>(state.iterations());
  state.SetLabel(std::string(ops->name()));
  state.counters["us/token"] = benchmark::Counter(runs * static_cast<double>(rows) / 1e6,
                                                  benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["GFMA/s"] = benchmark::Counter(1e-9 * runs * pairs * (kWidth + kLatent), benchmark::Counter::kIsRate);
}
BENCHMARK(mla)
    ->ArgNames({"heads", "position", "rows", "threads"})
    ->ArgsProduct({{14}, {0}, {64, 512}, {1, 2}})
    ->ArgsProduct({{14}, {63, 512, 4096}, {1}, {1, 2}})
    ->Args({96, 0, 512, 2})
    ->Args({96, 4096, 1, 1})
    ->Args({96, 4096, 1, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trireme::ops

BENCHMARK_MAIN();
