// The AMX kernels on a processor without AMX: their source is compiled here once more, with tiles and tile instructions
// played by plain arrays. Shapes, packing, blocking and the order of operations are tested; the instructions themselves
// are not.
#include <cstring>
#include <vector>

#include "base/numeric.h"
#include "linear_checks.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/intrinsics.h"

// What follows is compiled for AVX-512; what the standard library gave above is not.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif

namespace trireme::ops::cpu {
namespace {

// 16 rows of 64 bytes, as the kernels configure all tiles.
struct EmulatedTile {
  alignas(64) std::byte bytes[16][64];
};

struct EmulatedTiles {
  bool configured = false;
  EmulatedTile tiles[8];
};

thread_local EmulatedTiles emulated;

void emulate_config(const void* config) {
  uint8_t bytes[64];
  std::memcpy(bytes, config, 64);
  EXPECT_EQ(bytes[0], 1) << "palette";
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8, 64) << "bytes of a row of tile " << i;
    EXPECT_EQ(bytes[48 + i], 16) << "rows of tile " << i;
  }
  for (int i = 8; i < 16; ++i) EXPECT_EQ(bytes[16 + 2 * i] | bytes[17 + 2 * i] | bytes[48 + i], 0) << "no tile " << i;
  for (int i = 1; i < 16; ++i) EXPECT_EQ(bytes[i], 0) << "reserved";
  emulated.configured = true;
}

void emulate_release() { emulated.configured = false; }

void emulate_zero(int tile) { std::memset(emulated.tiles[tile].bytes, 0, 1024); }

void emulate_load(int tile, const void* base, int64_t stride) {
  EXPECT_TRUE(emulated.configured);
  for (int r = 0; r < 16; ++r)
    std::memcpy(emulated.tiles[tile].bytes[r], static_cast<const std::byte*>(base) + r * stride, 64);
}

void emulate_store(int tile, void* base, int64_t stride) {
  for (int r = 0; r < 16; ++r)
    std::memcpy(static_cast<std::byte*>(base) + r * stride, emulated.tiles[tile].bytes[r], 64);
}

// sum[m][n] += a[m][2k] * b[k][2n] + a[m][2k + 1] * b[k][2n + 1], pair after pair.
void emulate_dpbf16(int sum, int a, int b) {
  EXPECT_TRUE(emulated.configured);
  const auto value = [](int tile, int row, int at) {
    uint16_t bits = 0;
    std::memcpy(&bits, emulated.tiles[tile].bytes[row] + 2 * at, 2);
    return bf16_to_float(bits);
  };
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float total = 0;
      std::memcpy(&total, emulated.tiles[sum].bytes[m] + 4 * n, 4);
      for (int k = 0; k < 16; ++k) {
        total += value(a, m, 2 * k) * value(b, k, 2 * n);
        total += value(a, m, 2 * k + 1) * value(b, k, 2 * n + 1);
      }
      std::memcpy(emulated.tiles[sum].bytes[m] + 4 * n, &total, 4);
    }
  }
}

}  // namespace
}  // namespace trireme::ops::cpu

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulate_config
#define _tile_release emulate_release
#define _tile_zero emulate_zero
#define _tile_loadd emulate_load
#define _tile_stored emulate_store
#define _tile_dpbf16ps emulate_dpbf16
#define kTilePathAmx kEmulatedTilePath
#include "ops/cpu/linear_amx.cc"  // NOLINT(bugprone-suspicious-include)

namespace trireme::ops::test {
namespace {

constexpr cpu::LinearKernels kEmulated = {&cpu::kFloatPathAvx512, &cpu::kEmulatedTilePath};

TEST(CpuAmxEmulated, ShapesFormatsAndRowIndependence) {
  if (!cpu::cpu_features().avx512) GTEST_SKIP() << "needs AVX-512, which this processor does not have";
  ThreadPool pool(2);
  const cpu::CpuOps ops("amx", kEmulated, cpu::kRowKernelsAvx512, Precision::bf16, pool);
  for (const int64_t k : {1, 31, 32, 33, 64, 127, 128, 130, 160, 288}) {
    for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
      if (!stored_shape(format, k)) continue;
      for (const int64_t n : {1, 16, 33, 50}) check_shape(ops, format, n, k, k % 64 == 0 ? 40 : 17);
    }
  }
}

TEST(CpuAmxEmulated, NanAndInfinityStayInTheirRow) {
  if (!cpu::cpu_features().avx512) GTEST_SKIP() << "needs AVX-512, which this processor does not have";
  ThreadPool pool(1);
  const cpu::CpuOps ops("amx", kEmulated, cpu::kRowKernelsAvx512, Precision::bf16, pool);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
    const int64_t k = format == WeightFormat::mxfp4 ? 96 : 77;
    const PackedMatrix w = pack(ops, random_weight(format, 20, k, 3));
    const Matrix clean = random_matrix(20, k, 4, 1, Precision::bf16);
    Matrix x = clean;
    x.view().row(5)[k - 1] = std::numeric_limits<float>::quiet_NaN();
    x.view().row(6)[0] = std::numeric_limits<float>::infinity();
    const Matrix y = product(ops, x, 0, 20, w, Output::rounded);
    const Matrix expected = product(ops, clean, 0, 20, w, Output::rounded);
    for (int64_t t = 0; t < 20; ++t) {
      if (t == 5 || t == 6) {
        EXPECT_FALSE(std::isfinite(y.view().row(t)[0]));
      } else {
        EXPECT_TRUE(row_equals(y, t, expected, t)) << t;
      }
    }
  }
}

// What ranks that own some rows or some experts rely on: the kernel gives a row of weights the same chain wherever the
// row lies, and a pair of token and expert the same product in whatever group it is computed.
TEST(CpuAmxEmulated, PartsOfMatricesAndOfChoicesKeepTheirBits) {
  if (!cpu::cpu_features().avx512) GTEST_SKIP() << "needs AVX-512, which this processor does not have";
  ThreadPool pool(2);
  const cpu::CpuOps ops("amx", kEmulated, cpu::kRowKernelsAvx512, Precision::bf16, pool);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
    SCOPED_TRACE(std::string(weight_format_name(format)));
    const StoredWeight w = random_weight(format, 200, 160, 5);
    const Matrix x = random_matrix(18, 160, 6, 1, Precision::bf16);
    const Matrix whole = product(ops, x, 0, 18, pack(ops, w), Output::rounded);
    for (const int64_t begin : {1, 16, 77, 127, 128}) {
      const WeightView rows = rows_of(w.view(), begin, 61);
      const PackedMatrix packed = ops.pack(rows, Buffer(ops.packed_bytes(format, 61, 160)));
      const Matrix part = product(ops, x, 0, 18, packed, Output::rounded);
      for (int64_t t = 0; t < 18; ++t) {
        ASSERT_EQ(std::memcmp(part.view().row(t), whole.view().row(t) + begin, 61 * 4), 0) << begin << ", row " << t;
      }
    }
    std::vector<Expert> experts;
    for (uint64_t e = 0; e < 3; ++e) {
      experts.push_back({pack(ops, random_weight(format, 64, 160, e, 2)),
                         pack(ops, random_weight(format, 64, 160, e + 9, 2)),
                         pack(ops, random_weight(format, 160, 64, e + 20))});
    }
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 36; ++i) ids.push_back(static_cast<int32_t>(mix64(i) % 3));
    const std::vector<float> weights = random_uniform(36, 7, 0.1, 1), ones(36, 1.0F);
    Matrix at_once = poisoned(18, 160), twice(36, 160), products = poisoned(36, 160), combined = poisoned(18, 160);
    for (int64_t i = 0; i < 36; ++i) std::copy_n(x.view().row(i / 2), 160, twice.view().row(i));
    ops.experts({x.view(), ids.data(), weights.data(), 2, experts, {}, at_once.view()});
    ops.experts({twice.view(), ids.data(), ones.data(), 1, experts, {}, products.view()});
    ops.combine_experts({products.view(), weights.data(), 2, combined.view()});
    EXPECT_TRUE(same_bits(combined, at_once));
  }
}

TEST(CpuAmxEmulated, ScalesAtTheEdges) {
  if (!cpu::cpu_features().avx512) GTEST_SKIP() << "needs AVX-512, which this processor does not have";
  ThreadPool pool(1);
  const cpu::CpuOps ops("amx", kEmulated, cpu::kRowKernelsAvx512, Precision::bf16, pool);
  StoredWeight w{WeightFormat::mxfp4, 256, 32, std::vector<std::byte>(256 * 16), {}};
  for (int64_t r = 0; r < 256; ++r) {
    w.data[static_cast<size_t>(r * 16)] = std::byte{0x2};  // 1.0 at column 0
    w.scales.push_back(static_cast<std::byte>(r));
  }
  Matrix x(1, 32);
  x.data()[0] = 1;
  const Matrix y = product(ops, x, 0, 1, pack(ops, w), Output::rounded);
  for (int64_t r = 0; r < 255; ++r) EXPECT_EQ(y.data()[r], e8m0_to_float(static_cast<uint8_t>(r))) << r;
  EXPECT_TRUE(std::isnan(y.data()[255]));
}

}  // namespace
}  // namespace trireme::ops::test

#ifdef __clang__
#pragma clang attribute pop
#endif
