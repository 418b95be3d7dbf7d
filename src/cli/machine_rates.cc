#include "cli/machine_rates.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "tensor/buffer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trireme::cli {
namespace {

constexpr int64_t kReadBytes = int64_t{512} << 20;
constexpr int kPasses = 4;
constexpr int64_t kPeakRounds = 20'000'000;

template <class Body>
double seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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
// Each loop runs 12 chains, more than latency times issue width of any current core. The asm keeps every step of every
// chain.
__attribute__((target("avx512f,avx512bf16"))) float dot_chains_avx512(int64_t rounds) {
  __m512 acc[12];
  for (auto& a : acc) a = _mm512_setzero_ps();
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3c00));
  for (int64_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) {
      a = _mm512_dpbf16_ps(a, x, x);
      asm volatile("" : "+v"(a));
    }
  }
  float lanes[16];
  _mm512_storeu_ps(lanes, acc[0]);
  return lanes[0];
}

__attribute__((target("avx512f"))) float fma_chains_avx512(int64_t rounds) {
  __m512 acc[12];
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
  __m256 acc[12];
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

std::optional<double> measure_peak_flops(ThreadPool& pool, std::string_view isa, ops::Precision precision) {
#if defined(__x86_64__)
  float (*chains)(int64_t) = nullptr;
  double per_round = 0;  // operations of one thread
  if (isa == "avx512" && precision == ops::Precision::bf16) {
    chains = dot_chains_avx512;
    per_round = 12 * 32 * 2;
  } else if (isa == "avx512") {
    chains = fma_chains_avx512;
    per_round = 12 * 16 * 2;
  } else if (isa == "avx2") {
    chains = fma_chains_avx2;
    per_round = 12 * 8 * 2;
  } else {
    return std::nullopt;
  }
  double best = 0;
  volatile float sink = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double s = seconds([&] {
      pool.parallel_for(pool.threads(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sink = chains(kPeakRounds / kPasses);
      });
    });
    best = std::max(best, per_round * static_cast<double>(kPeakRounds / kPasses) * pool.threads() / s);
  }
  return best;
#else
  static_cast<void>(pool), static_cast<void>(isa), static_cast<void>(precision);
  return std::nullopt;
#endif
}

}  // namespace trireme::cli
