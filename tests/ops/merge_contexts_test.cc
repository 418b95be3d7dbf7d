// merge_contexts against its formula in float64, and its corner cases.
#include <limits>
#include <vector>

#include "ops/cpu_compare.h"

namespace trireme::ops::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kRows = 7;
constexpr int64_t kHeads = 5;
constexpr int64_t kLatent = 37;

struct Parts {
  Parts(Precision precision, uint64_t count) {
    for (uint64_t r = 0; r < count; ++r) {
      ctx.push_back(random_matrix(kRows, kHeads * kLatent, r + 1, 1, precision));
      lse.push_back(random_matrix(kRows, kHeads, r + 100, 3));
    }
  }

  Matrix merged(const Ops& ops) const {
    Matrix out = poisoned(kRows, kHeads * kLatent);
    ops.merge_contexts({views(ctx), views(lse), out.view()});
    return out;
  }
  static std::vector<ConstRows> views(const std::vector<Matrix>& matrices) {
    std::vector<ConstRows> all;
    for (const Matrix& m : matrices) all.push_back(m.view());
    return all;
  }
  std::span<float> head(size_t r, int64_t t, int64_t h) {
    return {ctx[r].view().row(t) + h * kLatent, static_cast<size_t>(kLatent)};
  }

  std::vector<Matrix> ctx;
  std::vector<Matrix> lse;
};

std::span<const float> head_of(const Matrix& m, int64_t t, int64_t h) {
  return {m.view().row(t) + h * kLatent, static_cast<size_t>(kLatent)};
}

template <class Body>
void for_both_precisions(const Body& body) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) { body(ops); });
  }
}

TEST(MergeContexts, IsItsFormula) {
  for_both_precisions([](const Ops& ops) {
    for (const uint64_t count : {2U, 3U, 8U}) {
      const Parts parts(ops.precision(), count);
      Matrix want(kRows, kHeads * kLatent);
      for (int64_t t = 0; t < kRows; ++t) {
        for (int64_t c = 0; c < kHeads * kLatent; ++c) {
          double sum = 0, total = 0;
          for (size_t r = 0; r < count; ++r) {
            const double weight = std::exp(static_cast<double>(parts.lse[r].view().row(t)[c / kLatent]));
            sum += weight * parts.ctx[r].view().row(t)[c];
            total += weight;
          }
          want.view().row(t)[c] = static_cast<float>(sum / total);
        }
      }
      const Matrix got = parts.merged(ops);
      expect_close(got, want, ops.precision());
      for (const float v : span_of(got)) {
        if (ops.precision() == Precision::bf16) {
          ASSERT_EQ(v, round_to_bf16(v));
        }
      }
    }
  });
}

TEST(MergeContexts, PartsThatSawNothingAreNotLookedAt) {
  for_both_precisions([](const Ops& ops) {
    Parts parts(ops.precision(), 3);
    const Matrix before = parts.merged(ops);
    // Row 1, head 2: only part 1 saw anything. Row 3, head 0: none did. Row 4, head 4: parts 0 and 2 did.
    for (const auto& [r, t, h] :
         {std::tuple<size_t, int64_t, int64_t>{0, 1, 2}, {2, 1, 2}, {0, 3, 0}, {1, 3, 0}, {2, 3, 0}, {1, 4, 4}}) {
      parts.lse[r].view().row(t)[h] = -kInfinity;
      for (float& v : parts.head(r, t, h)) v = kNan;
    }
    const Matrix after = parts.merged(ops);
    EXPECT_TRUE(same_bits(head_of(after, 1, 2), parts.head(1, 1, 2)));
    for (const float v : head_of(after, 3, 0)) EXPECT_EQ(v, 0.0F);
    Parts two(ops.precision(), 3);
    two.ctx.erase(two.ctx.begin() + 1);
    two.lse.erase(two.lse.begin() + 1);
    EXPECT_TRUE(same_bits(head_of(after, 4, 4), head_of(two.merged(ops), 4, 4)));
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const bool changed = (t == 1 && h == 2) || (t == 3 && h == 0) || (t == 4 && h == 4);
        if (!changed) {
          EXPECT_TRUE(same_bits(head_of(after, t, h), head_of(before, t, h))) << t << ", " << h;
        }
      }
    }
  });
}

TEST(MergeContexts, OnePartIsCopied) {
  for_both_precisions([](const Ops& ops) {
    const Parts parts(Precision::f32, 1);  // in bf16 not values that rounding would leave
    EXPECT_TRUE(same_bits(parts.merged(ops), parts.ctx.front()));
  });
}

TEST(MergeContexts, EqualPartsAndFarApartOnes) {
  for_both_precisions([](const Ops& ops) {
    Parts parts(ops.precision(), 2);
    for (int64_t h = 0; h < kHeads; ++h) {
      parts.lse[0].view().row(0)[h] = parts.lse[1].view().row(0)[h] = 3e4F;
      parts.lse[0].view().row(1)[h] = -3e4F;
      parts.lse[1].view().row(1)[h] = 3e4F;
    }
    const Matrix out = parts.merged(ops);
    for (int64_t c = 0; c < kHeads * kLatent; ++c) {
      const float mean = (parts.ctx[0].view().row(0)[c] + parts.ctx[1].view().row(0)[c]) / 2;
      EXPECT_EQ(out.view().row(0)[c], ops.precision() == Precision::bf16 ? round_to_bf16(mean) : mean);
      EXPECT_NEAR(out.view().row(1)[c], parts.ctx[1].view().row(1)[c], 1e-30);
    }
  });
}

TEST(MergeContexts, NanStaysInItsRowAndHead) {
  for_both_precisions([](const Ops& ops) {
    Parts parts(ops.precision(), 3);
    const Matrix clean = parts.merged(ops);
    parts.lse[1].view().row(2)[3] = kNan;
    const Matrix out = parts.merged(ops);
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        if (t == 2 && h == 3) {
          for (const float v : head_of(out, t, h)) EXPECT_TRUE(std::isnan(v));
        } else {
          EXPECT_TRUE(same_bits(head_of(out, t, h), head_of(clean, t, h)));
        }
      }
    }
  });
}

TEST(MergeContexts, RowsAloneStridesInPlaceAndNoRows) {
  for_both_precisions([](const Ops& ops) {
    const Parts parts(ops.precision(), 3);
    const Matrix want = parts.merged(ops);
    std::vector<ConstRows> ctx, lse;
    for (int64_t t = 0; t < kRows; ++t) {
      ctx.clear();
      lse.clear();
      for (size_t r = 0; r < 3; ++r) {
        ctx.push_back(parts.ctx[r].view().row_range(t, 1));
        lse.push_back(parts.lse[r].view().row_range(t, 1));
      }
      Matrix alone = poisoned(1, kHeads * kLatent);
      ops.merge_contexts({ctx, lse, alone.view()});
      EXPECT_TRUE(same_bits(alone, rows_of(want, t, 1)));
    }
    Strided a(parts.ctx[0]), b(parts.ctx[1]), c(parts.ctx[2]), out(kRows, kHeads * kLatent);
    Strided la(parts.lse[0]), lb(parts.lse[1]), lc(parts.lse[2]);
    ctx = {a.view(), b.view(), c.view()};
    lse = {la.view(), lb.view(), lc.view()};
    ops.merge_contexts({ctx, lse, out.view()});
    EXPECT_TRUE(same_bits(out.dense(), want));
    ops.merge_contexts({ctx, lse, b.view()});
    EXPECT_TRUE(same_bits(b.dense(), want));
    EXPECT_TRUE(out.margins_kept() && b.margins_kept());
    for (ConstRows& rows : ctx) rows.rows = 0;
    for (ConstRows& rows : lse) rows.rows = 0;
    ops.merge_contexts({ctx, lse, {nullptr, 0, kHeads * kLatent, kHeads * kLatent}});
  });
}

}  // namespace
}  // namespace trireme::ops::test
