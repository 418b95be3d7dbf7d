#include "cli/machine_rates.h"

#include <algorithm>
#include <vector>

#include "tensor/buffer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trireme::cli {
namespace {

constexpr int64_t kReadBytes = int64_t{512} << 20;  // more than the last cache of most processors
constexpr int kPasses = 4;                          // the best one counts
constexpr int64_t kPeakRounds = 5'000'000;          // of one pass

// Eight sums, so that additions never wait for each other.
uint64_t sum_block(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t s : sums) total += s;
  return total;
}

#if defined(__x86_64__)
constexpr int64_t kChains = 12;  // more than latency times issue width of any current core

// The asm keeps every step of every chain.
__attribute__((target("avx512f"))) float fma_chains_avx512(int64_t rounds) {
  __m512 acc[kChains];
  for (auto& a : acc) a = _mm512_setzero_ps();
  const __m512 x = _mm512_set1_ps(0.01F);
  for (int64_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) {
      a = _mm512_fmadd_ps(x, x, a);
      asm volatile("" : "+v"(a));
    }
  }
  float lanes[16];
  _mm512_storeu_ps(lanes, acc[0]);
  return lanes[0];
}

__attribute__((target("avx2,fma"))) float fma_chains_avx2(int64_t rounds) {
  __m256 acc[kChains];
  for (auto& a : acc) a = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(0.01F);
  for (int64_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) {
      a = _mm256_fmadd_ps(x, x, a);
      asm volatile("" : "+x"(a));
    }
  }
  float lanes[8];
  _mm256_storeu_ps(lanes, acc[0]);
  return lanes[0];
}
#endif

}  // namespace

double measure_read_rate(ThreadPool& pool) {
  const Buffer block(kReadBytes);
  const auto words = block.as<uint64_t>();
  const int64_t grain = static_cast<int64_t>(words.size()) / pool.threads();
  double best = 0;
  volatile uint64_t sink = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<uint64_t> sums(static_cast<size_t>(pool.threads()) + 1);
    const double s = seconds([&] {
      pool.parallel_for(static_cast<int64_t>(words.size()), grain, [&](int64_t begin, int64_t end) {
        sums[static_cast<size_t>(begin / grain)] = sum_block(words.data() + begin, end - begin);
      });
    });
    for (const uint64_t x : sums) sink = sink + x;
    best = std::max(best, static_cast<double>(kReadBytes) / s);
  }
  return best;
}

std::optional<double> measure_peak_flops(ThreadPool& pool, std::string_view isa) {
#if defined(__x86_64__)
  float (*chains)(int64_t) = nullptr;
  int64_t lanes = 0;
  if (isa == "avx512") {
    chains = fma_chains_avx512;
    lanes = 16;
  } else if (isa == "avx2") {
    chains = fma_chains_avx2;
    lanes = 8;
  } else {
    return std::nullopt;
  }
  const double per_round = static_cast<double>(kChains * lanes * 2);  // operations of one thread
  double best = 0;
  std::vector<float> results(static_cast<size_t>(pool.threads()));
  for (int pass = 0; pass < kPasses; ++pass) {
    const double s = seconds([&] {
      pool.parallel_for(pool.threads(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) results[static_cast<size_t>(i)] = chains(kPeakRounds);
      });
    });
    best = std::max(best, per_round * static_cast<double>(kPeakRounds) * pool.threads() / s);
  }
  return best;
#else
  static_cast<void>(pool), static_cast<void>(isa);
  return std::nullopt;
#endif
}

}  // namespace trireme::cli
