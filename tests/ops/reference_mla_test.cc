// Latent attention: absorbed against expanded, pages, cuts.
#include <gtest/gtest.h>

#include "ops/layers.h"
#include "ops/reference/mla_expanded.h"

namespace trireme::ops::test {
namespace {

MlaLayer small_layer() {
  MlaLayer w;
  w.heads = 3;
  w.nope = 12;
  w.rope = 4;
  w.value = 20;
  w.latent = 32;
  w.kv_b = {w.heads * (w.nope + w.value), w.latent, random_normal(w.heads * (w.nope + w.value) * w.latent, 1, 0.3)};
  return w;
}

TEST(ReferenceMla, AbsorbedFormEqualsExpandedForm) {
  const MlaLayer w = small_layer();
  constexpr int64_t kRows = 150;  // three pages
  const Matrix q = random_matrix(kRows, w.heads * (w.nope + w.rope), 2, 2.0);
  const Matrix latents = random_matrix(kRows, w.width(), 3);
  const ConstRows kv_b{w.kv_b.w.data(), w.kv_b.rows, w.kv_b.cols, w.kv_b.cols};
  Matrix expanded = poisoned(kRows, w.heads * w.value);
  reference::mla_expanded(
      {w.heads, w.nope, w.rope, w.value, w.latent, 0.25F, q.view(), latents.view(), kv_b, expanded.view()});
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    PagedLatents cache(kRows, w.width());
    const MlaSegment segment{0, kRows, 0, cache.table};
    ops.store_latent({latents.view(), cache.pages, {&segment, 1}});
    const Matrix absorbed = absorb(ops, w, q);
    Matrix ctx = poisoned(kRows, w.heads * w.latent);
    ops.mla({w.heads, w.latent, 0.25F, absorbed.view(), cache.pages, {&segment, 1}, ctx.view()});
    Matrix out = poisoned(kRows, w.heads * w.value);
    for (int64_t h = 0; h < w.heads; ++h) {
      ops.linear(ctx.view().columns(h * w.latent, w.latent), w.kv_rows(h, w.nope, w.value).packed(ops),
                 out.view().columns(h * w.value, w.value));
    }
    EXPECT_LT(relative_error(out, expanded), 3e-6);
  });
}

// Prefill at once, in pieces, token by token, and beside another sequence: the same bits, in either page format.
TEST(ReferenceMla, CutsAndNeighboursDoNotChangeBits) {
  constexpr int64_t kRows = 130;
  constexpr int64_t kWidth = 36;
  constexpr int64_t kLatent = 32;
  constexpr int64_t kHeads = 2;
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    const Matrix q = random_matrix(kRows, kHeads * kWidth, 4, 1.0, precision);
    const Matrix latents = random_matrix(kRows, kWidth, 5, 1.0, precision);
    for_each_isa(precision, [&](const Ops& ops) {
      const DType dtype = precision == Precision::bf16 ? DType::bf16 : DType::f32;
      PagedLatents cache(kRows, kWidth, dtype);
      const MlaSegment all{0, kRows, 0, cache.table};
      ops.store_latent({latents.view(), cache.pages, {&all, 1}});
      Matrix whole = poisoned(kRows, kHeads * kLatent);
      ops.mla({kHeads, kLatent, 0.2F, q.view(), cache.pages, {&all, 1}, whole.view()});
      for (const int64_t cut : {1, 63, 64, 65, 129}) {
        SCOPED_TRACE(cut);
        // Two sequences share the pool of pages; the second is a copy of the rows after the cut.
        PagedLatents other(6 * kPageTokens, kWidth, dtype);
        const std::span<const int32_t> mine = std::span(other.table).first(3);
        const std::span<const int32_t> theirs = std::span(other.table).subspan(3);
        const MlaSegment first{0, cut, 0, mine};
        const MlaSegment second[] = {{0, kRows - cut, cut, mine}, {kRows - cut, cut, 0, theirs}};
        ops.store_latent({latents.view().row_range(0, cut), other.pages, {&first, 1}});
        Matrix pieces = poisoned(kRows, kHeads * kLatent);
        ops.mla({kHeads,
                 kLatent,
                 0.2F,
                 q.view().row_range(0, cut),
                 other.pages,
                 {&first, 1},
                 pieces.view().row_range(0, cut)});
        Matrix rest_latents(kRows, kWidth);
        Matrix rest_q(kRows, kHeads * kWidth);
        for (int64_t i = 0; i < kRows; ++i) {
          const int64_t from = i < kRows - cut ? cut + i : i - (kRows - cut);
          std::copy_n(latents.view().row(from), kWidth, rest_latents.view().row(i));
          std::copy_n(q.view().row(from), kHeads * kWidth, rest_q.view().row(i));
        }
        ops.store_latent({rest_latents.view(), other.pages, second});
        Matrix rest = poisoned(kRows, kHeads * kLatent);
        ops.mla({kHeads, kLatent, 0.2F, rest_q.view(), other.pages, second, rest.view()});
        const auto rows = [&](const Matrix& m, int64_t begin, int64_t count) {
          return span_of(m).subspan(static_cast<size_t>(begin * kHeads * kLatent),
                                    static_cast<size_t>(count * kHeads * kLatent));
        };
        EXPECT_TRUE(same_bits(rows(pieces, 0, cut), rows(whole, 0, cut)));
        EXPECT_TRUE(same_bits(rows(rest, 0, kRows - cut), rows(whole, cut, kRows - cut)));
        EXPECT_TRUE(same_bits(rows(rest, kRows - cut, cut), rows(whole, 0, cut)));
      }
    });
  }
}

TEST(ReferenceMla, StoresExactlyItsRows) {
  constexpr int64_t kWidth = 8;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for_each_isa(dtype == DType::f32 ? Precision::f32 : Precision::bf16, [&](const Ops& ops) {
      const Matrix latents = random_matrix(5, kWidth, 6, 1.0, ops.precision());
      PagedLatents cache(128, kWidth, dtype);
      std::memset(cache.storage.data(), 0x5a, static_cast<size_t>(cache.storage.bytes()));
      const MlaSegment segment{0, 5, 62, cache.table};  // over a page's end
      ops.store_latent({latents.view(), cache.pages, {&segment, 1}});
      int64_t touched = 0;
      for (const std::byte b : cache.storage.as<std::byte>()) touched += b != std::byte{0x5a};
      EXPECT_LE(touched, 5 * kWidth * dtype_bytes(dtype));
      for (int64_t i = 0; i < 5; ++i) {
        const int64_t token = 62 + i;
        const std::byte* at = cache.pages.base +
                              cache.table[static_cast<size_t>(token / 64)] * cache.pages.page_bytes() +
                              token % 64 * kWidth * dtype_bytes(dtype);
        for (int64_t d = 0; d < kWidth; ++d) {
          float value = 0;
          uint16_t half = 0;
          std::memcpy(&half, at + d * 2, 2);
          if (dtype == DType::f32) std::memcpy(&value, at + d * 4, 4);
          if (dtype == DType::bf16) value = bf16_to_float(half);
          EXPECT_EQ(value, latents.view().row(i)[d]);
        }
      }
    });
  }
}

// Scores far beyond exp's range must not overflow: the softmax is shifted by its largest score.
TEST(ReferenceMla, LargeScores) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    Matrix latents(3, 4);
    const float values[] = {1, 2, 3, 100, 4, 5, 6, 1000, 7, 8, 9, -1000};
    std::copy(std::begin(values), std::end(values), latents.data());
    PagedLatents cache(3, 4);
    const MlaSegment segment{0, 3, 0, cache.table};
    ops.store_latent({latents.view(), cache.pages, {&segment, 1}});
    Matrix q(3, 4);
    for (int64_t t = 0; t < 3; ++t) q.view().row(t)[3] = 10;
    Matrix ctx = poisoned(3, 3);
    ops.mla({1, 3, 1.0F, q.view(), cache.pages, {&segment, 1}, ctx.view()});
    EXPECT_EQ(std::vector<float>(ctx.data(), ctx.data() + 9), (std::vector<float>{1, 2, 3, 4, 5, 6, 4, 5, 6}));
  });
}

}  // namespace
}  // namespace trireme::ops::test
