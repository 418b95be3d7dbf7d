// Products of parts of a matrix: a rank that packs some rows or columns computes what the whole would have given.
#include <string>
#include <utility>
#include <vector>

#include "ops/linear_checks.h"

namespace trireme::ops::test {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::fp8_block,
                                     WeightFormat::mxfp4};

PackedMatrix pack_view(const Ops& ops, const WeightView& w) {
  return ops.pack(w, Buffer(ops.packed_bytes(w.format, w.rows, w.cols)));
}

// The products with rows [begin, begin + count) are those columns of the products with all rows, to the bit.
void expect_rows(const Ops& ops, const WeightView& w, int64_t begin, int64_t count, const Matrix& x,
                 const Matrix& whole) {
  const Matrix part = product(ops, x, 0, x.rows(), pack_view(ops, rows_of(w, begin, count)), Output::rounded);
  for (int64_t t = 0; t < x.rows(); ++t) {
    ASSERT_EQ(std::memcmp(part.view().row(t), whole.view().row(t) + begin, static_cast<size_t>(count) * 4), 0)
        << count << " rows from " << begin << ", x row " << t;
  }
}

TEST(LinearSlices, RowsOfEveryFormatKeepTheirBits) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const WeightFormat format : kFormats) {
        SCOPED_TRACE(std::string(weight_format_name(format)));
        const StoredWeight w = random_weight(format, 300, 160, 11);
        const Matrix x = random_matrix(19, 160, 12, 1, precision);
        const Matrix whole = product(ops, x, 0, 19, pack(ops, w), Output::rounded);
        for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 300},
                                           {0, 150},
                                           {150, 150},
                                           {1, 16},
                                           {15, 17},
                                           {100, 100},
                                           {127, 130},
                                           {128, 128},
                                           {255, 45},
                                           {299, 1}}) {
          expect_rows(ops, w.view(), begin, count, x, whole);
        }
      }
    });
  }
}

TEST(LinearSlices, Fp8RowsAtEveryPhase) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      const StoredWeight w = random_weight(WeightFormat::fp8_block, 290, 150, 13);
      const Matrix x = random_matrix(2, 150, 14, 1, precision);
      const Matrix whole = product(ops, x, 0, 2, pack(ops, w), Output::rounded);
      for (int64_t phase = 0; phase < 128; ++phase) expect_rows(ops, w.view(), phase, 150, x, whole);
    });
  }
}

TEST(LinearSlices, ColumnsMultiplyTheirOwnInputs) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const WeightFormat format : kFormats) {
        const StoredWeight w = random_weight(format, 200, 416, 15);
        const WeightView rows = rows_of(w.view(), 90, 70);  // over a block's end
        std::vector<float> values(70 * 416);
        widen(rows, values);
        const Matrix x = random_matrix(5, 416, 16, 1, precision);
        for (const auto& [begin, count] :
             {std::pair<int64_t, int64_t>{0, 416}, {128, 256}, {256, 160}, {32, 64}, {40, 100}}) {
          SCOPED_TRACE(testing::Message() << weight_format_name(format) << ", columns from " << begin);
          std::vector<float> own;
          for (int64_t r = 0; r < 70; ++r) {
            own.insert(own.end(), values.begin() + r * 416 + begin, values.begin() + r * 416 + begin + count);
          }
          const OwnedWeight part = columns_of(rows, begin, count);
          Matrix y = poisoned(5, 70);
          ops.linear(x.view().columns(begin, count), pack_view(ops, part.view), y.view(), Output::f32);
          EXPECT_EQ(out_of_bounds(x.view().columns(begin, count), own, y.view(), false), 0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::ops::test
