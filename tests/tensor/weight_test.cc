#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace trireme {
namespace {

struct Stored {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  WeightView view;
};

// Random codes of every format; scales are moderate. FP8 codes are never NaN.
Stored make(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) {
  Stored stored;
  const int64_t total = weight_bytes(format, rows, cols);
  int64_t scale_bytes = 0;
  if (format == WeightFormat::fp8_block) scale_bytes = (rows + 127) / 128 * ((cols + 127) / 128) * 4;
  if (format == WeightFormat::mxfp4) scale_bytes = rows * cols / 32;
  stored.data.resize(static_cast<size_t>(total - scale_bytes));
  stored.scales.resize(static_cast<size_t>(scale_bytes));
  for (size_t i = 0; i < stored.data.size(); ++i) {
    stored.data[i] = static_cast<std::byte>(mix64(seed + i) & (format == WeightFormat::fp8_block ? 0xf7 : 0x3f));
  }
  for (size_t i = 0; i < stored.scales.size(); ++i)
    stored.scales[i] = static_cast<std::byte>(119 + mix64(seed ^ i) % 6);
  if (format == WeightFormat::fp8_block) {
    for (size_t i = 0; i < stored.scales.size() / 4; ++i) {
      const float scale = 0.001F * static_cast<float>(i + 1);
      std::memcpy(stored.scales.data() + 4 * i, &scale, 4);
    }
  }
  stored.view = {format, rows, cols, stored.data, stored.scales};
  return stored;
}

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::fp8_block,
                                     WeightFormat::mxfp4};

TEST(Weight, WideningAgreesWithSingleElements) {
  for (const WeightFormat format : kFormats) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32}, {3, 96}, {130, 160}, {128, 128}, {129, 256}}) {
      const Stored stored = make(format, rows, cols, 7);
      std::vector<float> all(static_cast<size_t>(rows * cols));
      widen(stored.view, all);
      std::vector<float> last(static_cast<size_t>(cols));
      widen_rows(stored.view, rows - 1, 1, last);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float one = weight_at(stored.view, r, c);
          ASSERT_EQ(std::bit_cast<uint32_t>(all[static_cast<size_t>(r * cols + c)]), std::bit_cast<uint32_t>(one))
              << weight_format_name(format) << " [" << r << ", " << c << "]";
          if (r == rows - 1) {
            ASSERT_EQ(last[static_cast<size_t>(c)], one);
          }
        }
      }
    }
  }
}

TEST(Weight, Fp8ScalesBelongToBlocksOf128With128RaggedAtTheEnds) {
  const Stored stored = make(WeightFormat::fp8_block, 200, 300, 3);  // 2 x 3 blocks
  ASSERT_EQ(stored.scales.size(), 6U * 4);
  for (const auto& [row, col, block] : {std::tuple<int64_t, int64_t, int>{0, 0, 0},
                                        {127, 127, 0},
                                        {0, 128, 1},
                                        {127, 299, 2},
                                        {128, 0, 3},
                                        {199, 255, 4},
                                        {199, 256, 5}}) {
    const auto code = static_cast<uint8_t>(stored.data[static_cast<size_t>(row * 300 + col)]);
    EXPECT_EQ(weight_at(stored.view, row, col), e4m3_to_float(code) * (0.001F * static_cast<float>(block + 1)));
  }
}

TEST(Weight, Mxfp4LowNibbleIsTheEvenElement) {
  const std::vector<std::byte> data(16, std::byte{0x7a});  // low 0xa = -1, high 0x7 = 6
  const std::vector<std::byte> scales = {std::byte{128}};  // 2
  const WeightView view{WeightFormat::mxfp4, 1, 32, data, scales};
  for (int64_t c = 0; c < 32; ++c) EXPECT_EQ(weight_at(view, 0, c), c % 2 == 0 ? -2.0F : 12.0F);
}

TEST(Weight, BytesCountScales) {
  EXPECT_EQ(weight_bytes(WeightFormat::f32, 3, 5), 60);
  EXPECT_EQ(weight_bytes(WeightFormat::bf16, 3, 5), 30);
  EXPECT_EQ(weight_bytes(WeightFormat::fp8_block, 576, 7168), 576 * 7168 + 5 * 56 * 4);
  EXPECT_EQ(weight_bytes(WeightFormat::mxfp4, 3072, 3584), 3072 * 1792 + 3072 * 112);
}

TEST(Weight, BadCodesAreFoundAndPlaced) {
  Stored mx = make(WeightFormat::mxfp4, 4, 96, 1);
  EXPECT_FALSE(find_bad_code(mx.view));
  mx.scales[7] = std::byte{255};
  EXPECT_EQ(find_bad_code(mx.view).value_or(""), "scale [2, 1] is 255 (NaN); it must be 0 to 254");

  Stored fp8 = make(WeightFormat::fp8_block, 130, 140, 1);
  EXPECT_FALSE(find_bad_code(fp8.view));
  for (const std::byte code : {std::byte{0x7f}, std::byte{0xff}}) {
    const std::byte before = std::exchange(fp8.data[129 * 140 + 139], code);
    EXPECT_EQ(find_bad_code(fp8.view).value_or(""), "element [129, 139] is NaN");
    fp8.data[129 * 140 + 139] = before;
  }
  for (const float scale : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::memcpy(fp8.scales.data() + 8, &scale, 4);
    EXPECT_NE(find_bad_code(fp8.view).value_or("").find("scale [1, 0]"), std::string::npos) << scale;
  }
}

}  // namespace
}  // namespace trireme
