// Operations of drafts on the CPU backends, against the reference.
#include "ops/cpu_compare.h"

namespace trireme::ops::test {
namespace {

TEST(CpuRope, EqualsTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const auto& [heads, dim] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {4, 64}, {3, 128}, {2, 10}}) {
      const std::vector<int64_t> positions = {0, 1, 5, 1000, 262143};
      const Matrix x = random_matrix(5, heads * dim, 1, 1.0, ops.precision());
      Strided mine(x);
      Matrix theirs = x;
      ops.rope({mine.view(), dim, 10000.0, positions});
      reference.rope({theirs.view(), dim, 10000.0, positions});
      expect_close(mine.dense(), theirs, ops.precision());
      EXPECT_TRUE(mine.margins_kept());
      EXPECT_TRUE(same_bits(rows_of(mine.dense(), 0, 1), rows_of(x, 0, 1)));  // position 0 turns nothing
    }
  });
}

struct DraftCase {
  int64_t q_heads, kv_heads, dim, context, block, window;
};

TEST(CpuDraftAttention, EqualsTheReferenceOnAnyThreads) {
  const std::vector<DraftCase> cases = {{1, 1, 16, 0, 1, 8},  {4, 2, 64, 100, 7, 2048}, {8, 2, 128, 65, 8, 16},
                                        {6, 3, 40, 30, 5, 3}, {2, 1, 5, 9, 3, 1},       {8, 8, 32, 300, 16, 128},
                                        {4, 1, 72, 17, 4, 19}};
  ThreadPool one(1);
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const DraftCase& c : cases) {
      SCOPED_TRACE(testing::Message() << c.q_heads << "/" << c.kv_heads << " heads of " << c.dim << ", context "
                                      << c.context << ", block " << c.block << ", window " << c.window);
      const int64_t kv = c.kv_heads * c.dim;
      const auto random = [&](int64_t rows, int64_t cols, uint64_t seed) {
        return random_matrix(rows, cols, seed, 1.0, ops.precision());
      };
      const Matrix q = random(c.block, c.q_heads * c.dim, 1);
      Strided ck(random(c.context, kv, 2)), cv(random(c.context, kv, 3)), bk(random(c.block, kv, 4)),
          bv(random(c.block, kv, 5));
      Strided out(c.block, c.q_heads * c.dim);
      const auto args = [&](ConstRows queries, int64_t first, Rows to) {
        return DraftAttentionArgs{c.q_heads, c.kv_heads, c.dim,     0.2F,      c.window,  40, 40 + c.context + first,
                                  queries,   ck.view(),  cv.view(), bk.view(), bv.view(), to};
      };
      Matrix expected = poisoned(c.block, c.q_heads * c.dim), serial = expected;
      ops.draft_attention(args(q.view(), 0, out.view()));
      reference.draft_attention(args(q.view(), 0, expected.view()));
      make_ops(ops.name(), ops.precision(), one)->draft_attention(args(q.view(), 0, serial.view()));
      expect_close(out.dense(), expected, ops.precision());
      EXPECT_TRUE(out.margins_kept());
      EXPECT_TRUE(same_bits(out.dense(), serial));
    }
  });
}

TEST(CpuDraftAttention, RowsAreIndependent) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    Matrix q = random_matrix(6, 2 * 32, 1, 1.0, ops.precision());
    const Matrix ck = random_matrix(50, 32, 2), cv = random_matrix(50, 32, 3), bk = random_matrix(6, 32, 4),
                 bv = random_matrix(6, 32, 5);
    const auto run = [&] {
      Matrix out = poisoned(6, 2 * 32);
      ops.draft_attention(
          {2, 1, 32, 0.2F, 20, 0, 50, q.view(), ck.view(), cv.view(), bk.view(), bv.view(), out.view()});
      return out;
    };
    const Matrix clean = run();
    q.view().row(2)[0] = std::numeric_limits<float>::quiet_NaN();
    const Matrix broken = run();
    EXPECT_TRUE(std::isnan(broken.view().row(2)[0]));
    EXPECT_FALSE(std::isnan(broken.view().row(2)[32]));
    EXPECT_TRUE(same_bits(rows_of(broken, 0, 2), rows_of(clean, 0, 2)));
    EXPECT_TRUE(same_bits(rows_of(broken, 3, 3), rows_of(clean, 3, 3)));
  });
}

}  // namespace
}  // namespace trireme::ops::test
