// Row views and column copies of weight matrices against weight_at of the whole.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/weight.h"

namespace trireme {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::fp8_block,
                                     WeightFormat::mxfp4};

struct Stored {
  Stored(WeightFormat format, int64_t rows, int64_t cols) {
    int64_t scale_bytes = 0;
    if (format == WeightFormat::fp8_block) scale_bytes = (rows + 127) / 128 * ((cols + 127) / 128) * 4;
    if (format == WeightFormat::mxfp4) scale_bytes = rows * cols / 32;
    data.resize(static_cast<size_t>(weight_bytes(format, rows, cols) - scale_bytes));
    scales.resize(static_cast<size_t>(scale_bytes));
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<std::byte>(mix64(i) & (format == WeightFormat::fp8_block ? 0xf7 : 0x3f));
    }
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(119 + mix64(~i) % 8);
    for (size_t i = 0; format == WeightFormat::fp8_block && i < scales.size() / 4; ++i) {
      const float scale = 0.37F * static_cast<float>(i + 1);
      std::memcpy(scales.data() + 4 * i, &scale, 4);
    }
    view = {format, rows, cols, data, scales};
  }

  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  WeightView view;
};

// Every way to read `part` gives the elements of `whole` from (row, col) on. Returns the first wrong one's place.
std::string difference(const WeightView& part, const WeightView& whole, int64_t row, int64_t col) {
  const auto size = static_cast<size_t>(part.rows * part.cols);
  std::vector<float> widened(size);
  widen(part, widened);
  for (int64_t r = 0; r < part.rows; ++r) {
    for (int64_t c = 0; c < part.cols; ++c) {
      const auto want = std::bit_cast<uint32_t>(weight_at(whole, row + r, col + c));
      const auto all = std::bit_cast<uint32_t>(widened[static_cast<size_t>(r * part.cols + c)]);
      if (std::bit_cast<uint32_t>(weight_at(part, r, c)) != want || all != want) {
        return fmt::format("[{}, {}]", r, c);
      }
    }
  }
  return "";
}

TEST(RowsOf, HasTheRowsOfTheWholeAtEveryPhase) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(weight_format_name(format)));
    const Stored whole(format, 290, 160);
    for (int64_t begin = 0; begin <= 290; ++begin) {
      for (const int64_t count : {0, 1, 7, 129, 200}) {
        if (begin + count > 290) continue;
        const WeightView part = rows_of(whole.view, begin, count);
        ASSERT_EQ(part.rows, count);
        ASSERT_EQ(part.cols, 160);
        ASSERT_EQ(part.format, format);
        ASSERT_EQ(part.row_phase, format == WeightFormat::fp8_block ? begin % 128 : 0);
        if (format == WeightFormat::fp8_block) {
          ASSERT_EQ(part.scales.size(), static_cast<size_t>((count + part.row_phase + 127) / 128) * 2 * 4);
        }
        ASSERT_EQ(difference(part, whole.view, begin, 0), "") << count << " rows from " << begin;
      }
    }
  }
}

TEST(RowsOf, OfAViewThatIsAPartItself) {
  for (const WeightFormat format : kFormats) {
    const Stored whole(format, 400, 160);
    const WeightView part = rows_of(whole.view, 77, 300);
    for (const int64_t begin : {0, 50, 51, 52, 130, 179, 180}) {
      const WeightView inner = rows_of(part, begin, 100);
      ASSERT_EQ(difference(inner, whole.view, 77 + begin, 0), "") << weight_format_name(format) << " from " << begin;
    }
  }
}

TEST(RowsOf, BadCodesAreFoundInItsOwnScalesOnly) {
  Stored whole(WeightFormat::fp8_block, 300, 130);  // 3 x 2 blocks
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(whole.scales.data() + 5 * 4, &bad, 4);  // of rows from 256
  EXPECT_FALSE(find_bad_code(rows_of(whole.view, 100, 156)));
  EXPECT_NE(find_bad_code(rows_of(whole.view, 100, 157)).value_or("").find("scale [2, 1]"), std::string::npos);
  EXPECT_NE(find_bad_code(rows_of(whole.view, 255, 2)).value_or("").find("scale [1, 1]"), std::string::npos);
}

TEST(ColumnsOf, HasTheColumnsOfTheWhole) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(weight_format_name(format)));
    const Stored whole(format, 150, 416);
    for (const int64_t phase : {0, 1, 100, 127}) {
      const WeightView rows = rows_of(whole.view, phase, 20);
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 416},
                                         {0, 128},
                                         {128, 128},
                                         {128, 288},
                                         {256, 160},
                                         {128, 130},
                                         {384, 32},
                                         {32, 64},
                                         {96, 320},
                                         {0, 33},
                                         {1, 31},
                                         {64, 1},
                                         {300, 116},
                                         {416, 0},
                                         {0, 0}}) {
        const OwnedWeight made = columns_of(rows, begin, count);
        const OwnedWeight part = [&] {  // moved: the view must still show the bytes
          OwnedWeight from = columns_of(rows, begin, count);
          return OwnedWeight(std::move(from));
        }();
        ASSERT_EQ(part.view.format, columns_format(format, 416, begin, count));
        ASSERT_EQ(part.view.rows, 20);
        ASSERT_EQ(part.view.cols, count);
        ASSERT_EQ(part.view.data.data(), part.data.data());
        ASSERT_EQ(part.view.scales.size(), part.scales.size());
        ASSERT_EQ(part.data, made.data);
        ASSERT_EQ(difference(part.view, rows, 0, begin), "") << count << " columns from " << begin;
      }
    }
  }
}

TEST(ColumnsOf, FormatIsKeptWhereBlocksAreNotCut) {
  const auto of = [](WeightFormat format, int64_t begin, int64_t count) {
    return columns_format(format, 416, begin, count);
  };
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16}) {
    EXPECT_EQ(of(format, 3, 5), format);
  }
  EXPECT_EQ(of(WeightFormat::fp8_block, 128, 128), WeightFormat::fp8_block);
  EXPECT_EQ(of(WeightFormat::fp8_block, 256, 160), WeightFormat::fp8_block);
  EXPECT_EQ(of(WeightFormat::fp8_block, 128, 64), WeightFormat::fp8_block);
  EXPECT_EQ(of(WeightFormat::fp8_block, 64, 128), WeightFormat::f32);
  EXPECT_EQ(of(WeightFormat::mxfp4, 32, 96), WeightFormat::mxfp4);
  EXPECT_EQ(of(WeightFormat::mxfp4, 16, 32), WeightFormat::f32);
  EXPECT_EQ(of(WeightFormat::mxfp4, 32, 33), WeightFormat::f32);
}

TEST(Slices, OutsideTheMatrixAreRefused) {
  const Stored whole(WeightFormat::bf16, 10, 32);
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{-1, 2}, {0, 33}, {32, 1}, {5, -1}}) {
    EXPECT_THROW(rows_of(whole.view, begin, count), Failure);
    EXPECT_THROW(columns_of(whole.view, begin, count), Failure);
    EXPECT_THROW(columns_format(WeightFormat::bf16, 32, begin, count), Failure);
  }
  try {
    rows_of(whole.view, 8, 4);
    FAIL();
  } catch (const Failure& e) {
    EXPECT_STREQ(e.what(), "rows [8, 12) were asked of a weight matrix that has 10");
  }
}

}  // namespace
}  // namespace trireme
