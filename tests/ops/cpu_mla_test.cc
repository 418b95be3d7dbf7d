// MLA of the CPU backends: against the reference over shapes, and bit for bit against itself over cuts, batches and
// threads.
#include "ops/cpu_compare.h"
#include "ops/layers.h"

namespace trireme::ops::test {
namespace {

// Backends round weights before they are divided by their sum, the reference after: up to 2^-8 of a weight's
// contribution apart.
constexpr double kWeightSlack = 0x1p-8;

struct Shape {
  int64_t heads, latent, rope;
};

struct Sequence {
  int64_t position, rows;
};

// A pool of pages filled with NaN, and the latents of some sequences in it, up to their last tokens.
struct Attention {
  Attention(const Ops& ops, Shape shape_, std::vector<Sequence> sequences_, DType dtype, uint64_t seed)
      : shape(shape_), width(shape.latent + shape.rope), sequences(std::move(sequences_)) {
    int64_t page_count = 1;
    int64_t total = 0;
    for (const Sequence& s : sequences) {
      page_count += (s.position + s.rows + kPageTokens - 1) / kPageTokens;
      total += s.rows;
    }
    pages = {nullptr, dtype, width};
    storage = Buffer(page_count * pages.page_bytes());
    std::memset(storage.data(), 0xff, static_cast<size_t>(storage.bytes()));
    pages.base = storage.data();
    auto next = static_cast<int32_t>(page_count - 1);
    int64_t row = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& s = sequences[i];
      const int64_t tokens = s.position + s.rows;
      tables.emplace_back();
      for (int64_t p = 0; p * kPageTokens < tokens; ++p) tables.back().push_back(next--);
      const Matrix latents = random_matrix(tokens, width, seed + i, 1.0, ops.precision());
      const MlaSegment all{0, tokens, 0, tables.back()};
      ops.store_latent({latents.view(), pages, {&all, 1}});
      segments.push_back({row, s.rows, s.position, tables.back()});
      row += s.rows;
    }
    // tables may have moved while it grew
    for (size_t i = 0; i < segments.size(); ++i) segments[i].pages = tables[i];
    q = random_matrix(total, shape.heads * width, seed + 100, 1.0, ops.precision());
  }

  MlaArgs args(ConstRows queries, std::span<const MlaSegment> which, Rows ctx) const {
    return {shape.heads, shape.latent, 1 / std::sqrt(static_cast<float>(width)), queries, pages, which, ctx};
  }
  Matrix run(const Ops& ops) const {
    Matrix ctx = poisoned(q.rows(), shape.heads * shape.latent);
    ops.mla(args(q.view(), segments, ctx.view()));
    return ctx;
  }
  // Rows [begin, begin + count) of segment s, alone.
  Matrix run_part(const Ops& ops, size_t s, int64_t begin, int64_t count) const {
    Matrix ctx = poisoned(count, shape.heads * shape.latent);
    MlaSegment part = segments[s];
    const ConstRows queries = q.view().row_range(part.row_begin + begin, count);
    part.row_begin = 0;
    part.rows = count;
    part.position += begin;
    ops.mla(args(queries, {&part, 1}, ctx.view()));
    return ctx;
  }

  Shape shape;
  int64_t width;
  std::vector<Sequence> sequences;
  LatentPages pages;
  Buffer storage;
  std::vector<std::vector<int32_t>> tables;
  std::vector<MlaSegment> segments;
  Matrix q;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{5, 64, 16}, {6, 40, 16}, {8, 64, 16},  {14, 512, 64}, {12, 32, 8}, {1, 16, 4},
                                         {96, 24, 8}, {3, 30, 5},  {2, 640, 64}, {130, 16, 8},  {17, 7, 2}};
  return all;
}

TEST(CpuMla, EqualsTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const Shape& shape : shapes()) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        SCOPED_TRACE(testing::Message() << shape.heads << " heads, latent " << shape.latent << ", rope " << shape.rope
                                        << ", " << dtype_name(dtype) << " pages");
        const Attention a(ops, shape, {{0, 1}, {62, 5}, {0, 70}, {200, 1}, {0, 0}, {63, 1}}, dtype, 1);
        expect_close(a.run(ops), a.run(reference), ops.precision(), kWeightSlack);
      }
    }
  });
}

TEST(CpuMla, LongContextsEqualTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    const Attention a(ops, {3, 32, 8}, {{1500, 1}, {505, 20}, {1023, 2}, {511, 1}}, DType::bf16, 2);
    expect_close(a.run(ops), a.run(reference), ops.precision(), kWeightSlack);
  });
}

TEST(CpuMla, RowsAloneAndInBatchesAreTheSameBits) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    for (const Shape& shape : {Shape{5, 64, 16}, Shape{14, 48, 16}, Shape{2, 24, 8}}) {
      // Rows across page ends (64, 128), and across the end of a partition (512).
      const Attention a(ops, shape, {{0, 131}, {490, 40}, {700, 1}}, DType::bf16, 3);
      const Matrix whole = a.run(ops);
      for (size_t s = 0; s < a.segments.size(); ++s) {
        const MlaSegment& segment = a.segments[s];
        for (const int64_t step : {1, 7, 15, 16, 17, 63, 64, 65}) {
          SCOPED_TRACE(testing::Message() << shape.heads << " heads, sequence " << s << " in pieces of " << step);
          for (int64_t begin = 0; begin < segment.rows; begin += step) {
            const int64_t count = std::min(step, segment.rows - begin);
            ASSERT_TRUE(same_bits(a.run_part(ops, s, begin, count), rows_of(whole, segment.row_begin + begin, count)))
                << "rows from " << begin;
          }
        }
      }
    }
  });
}

// Other numbers of threads cut the work in other places: over heads, and over partitions of long contexts.
TEST(CpuMla, ThreadsDoNotChangeBits) {
  ThreadPool one(1), four(4), nine(9);
  for_each_cpu([&](const Ops& ops, const Ops&) {
    for (const Shape& shape : {Shape{5, 64, 16}, Shape{40, 24, 8}}) {
      for (const std::vector<Sequence>& batch :
           {std::vector<Sequence>{{2600, 1}}, std::vector<Sequence>{{600, 3}, {0, 1}, {1030, 1}},
            std::vector<Sequence>{{0, 100}}}) {
        const Attention a(ops, shape, batch, DType::bf16, 4);
        const Matrix expected = a.run(*make_ops(ops.name(), ops.precision(), one));
        EXPECT_TRUE(same_bits(a.run(ops), expected));
        EXPECT_TRUE(same_bits(a.run(*make_ops(ops.name(), ops.precision(), four)), expected));
        EXPECT_TRUE(same_bits(a.run(*make_ops(ops.name(), ops.precision(), nine)), expected));
      }
    }
  });
}

// A broken token must not reach rows before it, nor other sequences; what lies past a sequence's end must not matter.
TEST(CpuMla, NanStaysWithItsOwnReaders) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    const Shape shape{5, 48, 16};
    Attention a(ops, shape, {{0, 100}, {20, 30}}, DType::bf16, 5);
    const Matrix clean = a.run(ops);
    for (int64_t i = 0; i < 100 * 5 * 48; ++i) ASSERT_FALSE(std::isnan(clean.data()[i]));
    Matrix bad(1, a.width);
    std::fill_n(bad.data(), a.width, std::numeric_limits<float>::quiet_NaN());
    const MlaSegment at{0, 1, 71, a.tables[0]};
    ops.store_latent({bad.view(), a.pages, {&at, 1}});
    const Matrix broken = a.run(ops);
    EXPECT_TRUE(same_bits(rows_of(broken, 0, 71), rows_of(clean, 0, 71)));
    EXPECT_TRUE(same_bits(rows_of(broken, 100, 30), rows_of(clean, 100, 30)));
    for (int64_t t = 71; t < 100; ++t) EXPECT_TRUE(std::isnan(broken.view().row(t)[0])) << t;
  });
}

TEST(CpuMla, HostileScores) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    Attention a(ops, {3, 16, 8}, {{0, 80}}, DType::f32, 6);
    for (int64_t i = 0; i < a.q.rows() * a.q.cols(); ++i) a.q.data()[i] *= 4096;  // scores of many thousands
    std::fill_n(a.q.view().row(3), a.q.cols(), 0.0F);                             // all scores equal
    a.q.view().row(20)[1] = std::numeric_limits<float>::quiet_NaN();              // breaks the row's first head
    const Matrix out = a.run(ops);
    const Matrix expected = a.run(reference);
    for (int64_t t = 0; t < 80; ++t) {
      SCOPED_TRACE(t);
      expect_close(rows_of(out, t, 1), rows_of(expected, t, 1), ops.precision(), kWeightSlack);
    }
    EXPECT_TRUE(std::isnan(out.view().row(20)[0]));
    EXPECT_FALSE(std::isnan(out.view().row(20)[16]));
  });
}

TEST(CpuMla, StridedQueriesAndOutputs) {
  for_each_cpu([&](const Ops& ops, const Ops&) {
    const Attention a(ops, {5, 40, 16}, {{30, 50}}, DType::bf16, 7);
    const Matrix expected = a.run(ops);
    Strided q(a.q), ctx(50, 5 * 40);
    ops.mla(a.args(q.view(), a.segments, ctx.view()));
    EXPECT_TRUE(same_bits(ctx.dense(), expected));
    EXPECT_TRUE(ctx.margins_kept());
  });
}

TEST(CpuStoreLatent, EqualsTheReference) {
  for_each_cpu([&](const Ops& ops, const Ops& reference) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const int64_t width : {5, 16, 80, 576}) {
        const Matrix latents = random_matrix(200, width, 8);  // not bfloat16 values: storing rounds
        PagedLatents mine(300, width, dtype), theirs(300, width, dtype);
        const MlaSegment of_mine{0, 200, 63, mine.table}, of_theirs{0, 200, 63, theirs.table};
        ops.store_latent({latents.view(), mine.pages, {&of_mine, 1}});
        reference.store_latent({latents.view(), theirs.pages, {&of_theirs, 1}});
        EXPECT_EQ(std::memcmp(mine.storage.data(), theirs.storage.data(), static_cast<size_t>(mine.storage.bytes())),
                  0);
      }
    }
  });
}

}  // namespace
}  // namespace trireme::ops::test
