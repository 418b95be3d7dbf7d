// Matrix products of the CPU backends against float64 sums over the exact weights: shapes that divide nothing, every
// format, strided and poisoned rows, hostile values, and the promise that a row's bits depend on nothing but the row
// and the weights.
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "linear_checks.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/linear_layout.h"

namespace trireme::ops::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::fp8_block,
                                     WeightFormat::mxfp4};

void check_shapes(Precision precision) {
  constexpr int64_t kCols[] = {1, 15, 16, 17, 31, 32, 33, 64, 96, 127, 128, 129, 160, 192, 511, 513, 576, 1056};
  constexpr int64_t kRows[] = {1, 15, 16, 17, 31, 33, 48, 65, 129, 80, 144, 7, 130, 200, 40, 49, 100, 35};
  for_each_isa(precision, [&](const Ops& ops) {
    if (ops.name() == "reference") return;
    for (size_t i = 0; i < std::size(kCols); ++i) {
      for (const WeightFormat format : kFormats) {
        if (stored_shape(format, kCols[i])) check_shape(ops, format, kRows[i], kCols[i], 40);
      }
    }
  });
}

TEST(CpuLinear, EveryShapeAndFormatInF32) { check_shapes(Precision::f32); }
TEST(CpuLinear, EveryShapeAndFormatInBf16) { check_shapes(Precision::bf16); }

TEST(CpuLinear, ManyRowsCrossEveryBlock) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      if (ops.name() == "reference") return;
      for (const WeightFormat format : kFormats) {
        const int64_t k = format == WeightFormat::mxfp4 ? 1056 : 1043;
        const StoredWeight stored = random_weight(format, 290, k, 5);
        const PackedMatrix w = pack(ops, stored);
        const Matrix x = random_matrix(301, k, 6, 1, precision);
        const Matrix y = product(ops, x, 0, 301, w, Output::rounded);
        EXPECT_EQ(out_of_bounds(x.view().row_range(290, 11), widened(stored), y.view().row_range(290, 11),
                                precision == Precision::bf16),
                  0);
        for (const int64_t t : {0, 11, 12, 131, 132, 133, 263, 264, 299, 300}) {
          EXPECT_TRUE(row_equals(product(ops, x, t, 1, w, Output::rounded), 0, y, t))
              << weight_format_name(format) << " row " << t;
        }
      }
    });
  }
}

TEST(CpuLinear, ThreadsDoNotChangeBits) {
  for (const WeightFormat format : kFormats) {
    const StoredWeight stored = random_weight(format, 330, 608, 9);
    const Matrix x = random_matrix(150, 608, 10, 1, Precision::bf16);
    for (const std::string_view isa : available_isas()) {
      ThreadPool one(1);
      ThreadPool two(2);
      ThreadPool five(5);
      const auto a = make_ops(isa, Precision::bf16, one);
      const auto b = make_ops(isa, Precision::bf16, two);
      const auto c = make_ops(isa, Precision::bf16, five);
      for (const int64_t rows : {1, 3, 8, 20, 150}) {
        const Matrix expected = product(*a, x, 0, rows, pack(*a, stored), Output::rounded);
        EXPECT_TRUE(same_bits(product(*b, x, 0, rows, pack(*b, stored), Output::rounded), expected))
            << isa << " " << rows;
        EXPECT_TRUE(same_bits(product(*c, x, 0, rows, pack(*c, stored), Output::rounded), expected))
            << isa << " " << rows;
      }
    }
  }
}

TEST(CpuLinear, StridesAreKeptAndGapsUntouched) {
  constexpr int64_t kRows = 19, kOut = 37, kIn = 45;
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    const PackedMatrix w = pack(ops, random_weight(WeightFormat::bf16, kOut, kIn, 3));
    const Matrix dense = random_matrix(kRows, kIn, 4, 1, Precision::bf16);
    Matrix wide = poisoned(kRows, kIn + 3);  // NaN between the rows must not be read
    for (int64_t t = 0; t < kRows; ++t) std::copy_n(dense.view().row(t), kIn, wide.view().row(t) + 2);
    for (const int64_t rows : {0, 1, 2, 7, 12, 19}) {
      Matrix out(kRows, kOut + 5);
      std::fill_n(out.data(), kRows * (kOut + 5), 123.0F);
      ops.linear(wide.view().columns(2, kIn).row_range(0, rows), w, out.view().columns(1, kOut).row_range(0, rows));
      const Matrix expected = product(ops, dense, 0, rows, w, Output::rounded);
      for (int64_t t = 0; t < kRows; ++t) {
        const float* row = out.view().row(t);
        if (t < rows) {
          EXPECT_EQ(std::memcmp(row + 1, expected.view().row(t), kOut * 4), 0);
        } else {
          EXPECT_EQ(row[1], 123.0F);
          EXPECT_EQ(row[kOut], 123.0F);
        }
        EXPECT_EQ(row[0], 123.0F);
        for (int64_t i = kOut + 1; i < kOut + 5; ++i) EXPECT_EQ(row[i], 123.0F);
      }
    }
  });
}

// A one-hot row picks one weight, so every code at every place of a group is seen exactly.
void expect_columns_exact(const StoredWeight& stored, int64_t cols) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const PackedMatrix w = pack(ops, stored);
    Matrix x(cols, cols);
    for (int64_t k = 0; k < cols; ++k) x.view().row(k)[k] = 1;
    for (const int64_t step : {int64_t{1}, cols}) {  // as single rows and all together
      for (int64_t begin = 0; begin < cols; begin += step) {
        const Matrix y = product(ops, x, begin, step, w, Output::rounded);
        for (int64_t t = 0; t < step; ++t) {
          for (int64_t n = 0; n < stored.rows; ++n) {
            const float value = weight_at(stored.view(), n, begin + t);
            const float got = y.view().row(t)[n];
            ASSERT_TRUE(got == value || (std::isnan(value) && std::isnan(got)))
                << "output " << n << " input " << begin + t << ": " << got << " for " << value;
          }
        }
      }
    }
  });
}

TEST(CpuLinear, EveryFp8CodeIsExact) {
  constexpr int64_t kCols = 21;
  StoredWeight w{WeightFormat::fp8_block, 256, kCols, {}, {}};
  for (int64_t r = 0; r < 256; ++r) {
    for (int64_t c = 0; c < kCols; ++c) {
      auto code = static_cast<uint8_t>(r + c * 7);
      if ((code & 0x7f) == 0x7f) code = 0;  // NaN has its own test
      w.data.push_back(static_cast<std::byte>(code));
    }
  }
  for (const float scale : {0.37F, 3.0F}) detail::append(w.scales, scale);
  expect_columns_exact(w, kCols);
}

TEST(CpuLinear, EveryMxfp4CodeAndScaleIsExact) {
  constexpr int64_t kCols = 32;
  StoredWeight w{WeightFormat::mxfp4, 512, kCols, {}, {}};
  for (int64_t r = 0; r < 512; ++r) {
    for (int64_t c = 0; c < kCols / 2; ++c) {
      const int64_t code = r + c;
      // A row with an infinite or NaN weight would spoil its other columns: the codes there stay small.
      const int64_t low = r % 256 >= 253 ? 1 : code % 16;
      const int64_t high = r % 256 >= 253 ? 9 : (code * 3 + 5) % 16;
      w.data.push_back(static_cast<std::byte>(low | high << 4));
    }
  }
  for (int64_t r = 0; r < 512; ++r) w.scales.push_back(static_cast<std::byte>(r % 256));
  expect_columns_exact(w, kCols);
}

TEST(CpuLinear, Fp8NanCodesGiveNanInTheirOutputOnly) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      StoredWeight stored = random_weight(WeightFormat::fp8_block, 40, 200, 21);
      stored.data[20 * 200 + 150] = std::byte{0xff};
      stored.data[39 * 200 + 3] = std::byte{0x7f};
      const PackedMatrix w = pack(ops, stored);
      Matrix x = random_matrix(14, 200, 22, 1, Precision::bf16);
      x.view().row(3)[150] = 0;  // NaN * 0 is NaN
      for (const int64_t rows : {1, 5, 14}) {
        const Matrix y = product(ops, x, 0, rows, w, Output::rounded);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t n = 0; n < 40; ++n)
            EXPECT_EQ(std::isnan(y.view().row(t)[n]), n == 20 || n == 39) << t << " " << n;
        }
      }
    });
  }
}

TEST(CpuLinear, HostileRowsStayAlone) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const WeightFormat format : kFormats) {
        const int64_t k = format == WeightFormat::mxfp4 ? 64 : 77;
        const StoredWeight stored = random_weight(format, 50, k, 31);
        const PackedMatrix w = pack(ops, stored);
        const Matrix clean = random_matrix(15, k, 32, 1, Precision::bf16);
        Matrix x = clean;
        x.view().row(2)[0] = kNan;
        x.view().row(7)[k - 1] = kInf;
        x.view().row(11)[5] = -kInf;
        x.view().row(13)[1] = 0x1p-130F;  // denormal
        x.view().row(14)[1] = -0.0F;
        const Matrix y = product(ops, x, 0, 15, w, Output::rounded);
        const Matrix expected = product(ops, clean, 0, 15, w, Output::rounded);
        const std::vector<float> values = widened(stored);
        for (int64_t t = 0; t < 13; ++t) {
          const float* row = y.view().row(t);
          for (int64_t n = 0; n < 50; ++n) {
            if (t == 2) {
              EXPECT_TRUE(std::isnan(row[n]));
            } else if (t == 7 || t == 11) {
              const float weight = values[static_cast<size_t>(n * k + (t == 7 ? k - 1 : 5))] * (t == 7 ? 1.0F : -1.0F);
              EXPECT_TRUE(weight == 0 ? std::isnan(row[n]) : row[n] == std::copysign(kInf, weight))
                  << weight << " " << row[n];
            }
          }
          if (t != 2 && t != 7 && t != 11) {
            EXPECT_TRUE(row_equals(y, t, expected, t)) << t;
          }
        }
      }
    });
  }
}

TEST(CpuLinear, DenormalWeightsAndActivationsAreExactInF32) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const std::vector<float> values = {0x1p-140F, -0x1p-130F, 0x1.8p-127F, 0, 0x1p-126F, -0x1p-149F};
    const PackedMatrix w = pack(ops, f32_weight(2, 3, values));
    Matrix x(1, 3);
    x.data()[0] = 4;
    x.data()[1] = 1;
    x.data()[2] = 2;
    const Matrix y = product(ops, x, 0, 1, w, Output::f32);
    EXPECT_EQ(y.data()[0], 4 * 0x1p-140F - 0x1p-130F + 0x1.8p-126F);
    EXPECT_EQ(y.data()[1], 0x1p-126F - 0x1p-148F);
  });
}

TEST(CpuLinear, UnalignedCheckpointBytesPackTheSame) {
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    for (const WeightFormat format : kFormats) {
      const StoredWeight stored = random_weight(format, 35, 96, 41);
      std::vector<std::byte> data(stored.data.size() + 1);
      std::vector<std::byte> scales(stored.scales.size() + 1);
      std::copy(stored.data.begin(), stored.data.end(), data.begin() + 1);
      std::copy(stored.scales.begin(), stored.scales.end(), scales.begin() + 1);
      const WeightView shifted{format, 35, 96, std::span(data).subspan(1), std::span(scales).subspan(1)};
      const PackedMatrix a = pack(ops, stored);
      const PackedMatrix b = ops.pack(shifted, Buffer(ops.packed_bytes(format, 35, 96)));
      ASSERT_EQ(a.storage.bytes(), b.storage.bytes());
      EXPECT_EQ(std::memcmp(a.storage.data(), b.storage.data(), static_cast<size_t>(a.storage.bytes())), 0);
    }
  });
}

TEST(CpuLinear, PackedSizeStaysNearStoredSize) {
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    for (const WeightFormat format :
         {WeightFormat::f32, WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1792, 1024}, {224, 512}, {512, 224}}) {
        const auto stored = static_cast<double>(weight_bytes(format, n, k));
        EXPECT_LE(static_cast<double>(ops.packed_bytes(format, n, k)), stored * 1.04) << weight_format_name(format);
      }
    }
    EXPECT_EQ(ops.packed_bytes(WeightFormat::f16, 32, 32), ops.packed_bytes(WeightFormat::f32, 32, 32));
  });
}

TEST(CpuLinear, PackRefusesWhatItCannotHold) {
  ThreadPool pool(1);
  for (const std::string_view isa : available_isas()) {
    if (isa == "reference") continue;
    const auto ops = make_ops(isa, Precision::bf16, pool);
    const StoredWeight stored = random_weight(WeightFormat::bf16, 16, 16, 1);
    EXPECT_THROW(ops->pack(stored.view(), Buffer(100)), Failure);
    const StoredWeight ragged{WeightFormat::mxfp4, 2, 40, std::vector<std::byte>(40), std::vector<std::byte>(2)};
    EXPECT_THROW(ops->pack(ragged.view(), Buffer(ops->packed_bytes(WeightFormat::mxfp4, 2, 40))), BadInput);
  }
}

TEST(CpuLinear, EmbeddingGathersRows) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16}) {
        const StoredWeight stored = random_weight(format, 11, 37, 51);
        EmbeddingTable table{format, 11, 37, Buffer(static_cast<int64_t>(stored.data.size()))};
        std::memcpy(table.storage.data(), stored.data.data(), stored.data.size());
        const std::vector<int32_t> tokens = {10, 0, 3, 3};
        Matrix y = poisoned(4, 37);
        ops.embed(tokens, table, y.view());
        for (int64_t t = 0; t < 4; ++t) {
          for (int64_t d = 0; d < 37; ++d) {
            const float value = weight_at(stored.view(), tokens[static_cast<size_t>(t)], d);
            EXPECT_EQ(y.view().row(t)[d], precision == Precision::bf16 ? round_to_bf16(value) : value);
          }
        }
        ops.embed({}, table, Matrix(0, 37).view());
      }
    });
  }
}

TEST(CpuLinear, InstructionSetsOfThisMachine) {
  const cpu::CpuFeatures& features = cpu::cpu_features();
  const auto isas = available_isas();
  EXPECT_EQ(isas.back(), "reference");
  EXPECT_EQ(std::count(isas.begin(), isas.end(), "avx2"), features.avx2 ? 1 : 0);
  EXPECT_EQ(std::count(isas.begin(), isas.end(), "avx512"), features.avx512 ? 1 : 0);
  EXPECT_EQ(std::count(isas.begin(), isas.end(), "amx"), features.amx ? 1 : 0);
  ThreadPool pool(1);
  for (const std::string_view isa : isas) EXPECT_EQ(make_ops(std::string(isa), Precision::f32, pool)->name(), isa);
  EXPECT_EQ(make_ops("auto", Precision::f32, pool)->name(), isas.front());
  EXPECT_THROW(make_ops("sse9", Precision::f32, pool), BadInput);
}

TEST(CpuLinear, AmxRuns) {
  if (!cpu::cpu_features().amx) {
    GTEST_SKIP()
        << "NOT TESTED HERE: this processor or system offers no AMX, so the amx kernels of matrix products did not run";
  }
  ThreadPool pool(2);
  check_shape(*make_ops("amx", Precision::bf16, pool), WeightFormat::bf16, 100, 200, 40);
}

}  // namespace
}  // namespace trireme::ops::test
