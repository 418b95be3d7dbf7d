// MLA over token shards: every shard alone against float64, and all of them merged against one attention.
#include <limits>
#include <set>

#include "ops/cpu_compare.h"
#include "ops/layers.h"

namespace trireme::ops::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kHeads = 3;
constexpr int64_t kLatent = 24;
constexpr int64_t kWidth = 32;
const float kScale = 1 / std::sqrt(32.0F);

DType page_dtype(Precision precision) { return precision == Precision::bf16 ? DType::bf16 : DType::f32; }

struct Result {
  Matrix ctx;
  Matrix lse;
};

// One sequence: `position` earlier tokens and `rows` new ones, whose queries are asked.
struct Sequence {
  Sequence(Precision precision, int64_t position_, int64_t rows_, uint64_t seed)
      : position(position_),
        rows(rows_),
        latents(random_matrix(position + rows, kWidth, seed, 1, precision)),
        q(random_matrix(rows, kHeads * kWidth, seed + 1, 1.5, precision)) {}

  int64_t position;
  int64_t rows;
  Matrix latents;
  Matrix q;
};

// The pages of one shard of a sequence. They have no more rows than the shard needs, and hold NaN where nothing was
// stored; the last tokens' rows are stored in a call of their own.
struct ShardPages {
  ShardPages(const Ops& ops, const Sequence& s, TokenShard shard_)
      : shard(shard_), cache(shard_.local_rows(s.position + s.rows), kWidth, page_dtype(ops.precision())) {
    std::memset(cache.storage.data(), 0xff, static_cast<size_t>(cache.storage.bytes()));
    const MlaSegment first{0, s.position, 0, cache.table};
    const MlaSegment second{0, s.rows, s.position, cache.table};
    ops.store_latent({s.latents.view(), cache.pages, {&first, 1}, shard});
    ops.store_latent({s.latents.view().row_range(s.position, s.rows), cache.pages, {&second, 1}, shard});
  }

  // Rows [begin, begin + count) of the sequence's queries.
  Result attend(const Ops& ops, const Sequence& s, int64_t begin, int64_t count) const {
    Result r{poisoned(count, kHeads * kLatent), poisoned(count, kHeads)};
    const MlaSegment segment{0, count, s.position + begin, cache.table};
    ops.mla({kHeads,
             kLatent,
             kScale,
             s.q.view().row_range(begin, count),
             cache.pages,
             {&segment, 1},
             r.ctx.view(),
             shard,
             r.lse.view()});
    return r;
  }

  TokenShard shard;
  PagedLatents cache;
};

std::vector<Result> attend_all(const Ops& ops, const Sequence& s, int64_t shards) {
  std::vector<Result> results;
  for (int64_t r = 0; r < shards; ++r) {
    results.push_back(ShardPages(ops, s, {r, shards}).attend(ops, s, 0, s.rows));
  }
  return results;
}

Matrix merge(const Ops& ops, const std::vector<Result>& parts) {
  std::vector<ConstRows> ctx, lse;
  for (const Result& part : parts) {
    ctx.push_back(part.ctx.view());
    lse.push_back(part.lse.view());
  }
  Matrix out = poisoned(parts.front().ctx.rows(), parts.front().ctx.cols());
  ops.merge_contexts({ctx, lse, out.view()});
  return out;
}

// A head's scores in float64 for the tokens that a row sees of a shard.
std::vector<double> expected_scores(const Sequence& s, TokenShard shard, int64_t row, int64_t head) {
  std::vector<double> scores;
  for (int64_t token = shard.index; token <= s.position + row; token += shard.count) {
    double dot = 0;
    for (int64_t d = 0; d < kWidth; ++d) {
      dot += static_cast<double>(s.q.view().row(row)[head * kWidth + d]) * s.latents.view().row(token)[d];
    }
    scores.push_back(dot * kScale);
  }
  return scores;
}

double expected_lse(const Sequence& s, TokenShard shard, int64_t row, int64_t head) {
  const std::vector<double> scores = expected_scores(s, shard, row, head);
  if (scores.empty()) return -kInfinity;
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double v : scores) sum += std::exp(v - largest);
  return largest + std::log(sum);
}

// Against float64 in bf16 precision. With weights p of values v: rounding p and each part's context may each shift a
// result by 2^-8 sum p |v|, rounding the result by 2^-8 of itself.
void expect_within_roundings(const Sequence& s, const Matrix& merged) {
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<double> scores = expected_scores(s, {}, row, head);
      const double lse = expected_lse(s, {}, row, head);
      for (int64_t d = 0; d < kLatent; ++d) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < scores.size(); ++i) {
          const double term = std::exp(scores[i] - lse) * s.latents.view().row(static_cast<int64_t>(i))[d];
          sum += term;
          magnitude += std::fabs(term);
        }
        const double bound = (2 * magnitude + std::fabs(sum)) * 0x1p-8 * 1.01;  // 1.01: products of two roundings
        ASSERT_NEAR(merged.view().row(row)[head * kLatent + d], sum, bound) << "row " << row << ", column " << d;
      }
    }
  }
}

void check_part(const Sequence& s, TokenShard shard, const Result& part) {
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const double want = expected_lse(s, shard, row, head);
      const float got = part.lse.view().row(row)[head];
      if (std::isinf(want)) {
        ASSERT_EQ(got, -kInfinity) << "row " << row;
        for (int64_t d = 0; d < kLatent; ++d) ASSERT_EQ(part.ctx.view().row(row)[head * kLatent + d], 0.0F);
      } else {
        ASSERT_NEAR(got, want, 2e-6 * (1 + std::fabs(want))) << "row " << row;
      }
    }
  }
}

void check_sequence(const Ops& ops, int64_t position, int64_t rows) {
  const Sequence s(ops.precision(), position, rows, static_cast<uint64_t>(7 * position + rows));
  const Result whole = attend_all(ops, s, 1).front();
  for (const int64_t shards : {1, 2, 3, 4, 8}) {
    const bool wanted = position <= 3 * shards + 1 || position >= 63;
    if (!wanted) continue;
    SCOPED_TRACE(testing::Message() << position << " + " << rows << " tokens in " << shards << " shards");
    const std::vector<Result> parts = attend_all(ops, s, shards);
    for (int64_t r = 0; r < shards; ++r) check_part(s, {r, shards}, parts[static_cast<size_t>(r)]);
    const Matrix merged = merge(ops, parts);
    if (shards == 1) {
      ASSERT_TRUE(same_bits(merged, whole.ctx));
    } else if (ops.precision() == Precision::f32) {
      ASSERT_LT(relative_error(merged, whole.ctx), 2e-6);
    } else {
      expect_within_roundings(s, merged);
    }
  }
}

TEST(MlaShards, MergedTheyAreOneAttention) {
  std::set<int64_t> positions = {63, 64, 65, 127, 128, 511, 512, 513};
  for (int64_t position = 0; position <= 25; ++position) positions.insert(position);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const int64_t position : positions) {
        for (const int64_t rows : {1, 5}) check_sequence(ops, position, rows);
      }
    });
  }
}

// Local rows over the ends of partitions (512 of them): some rows of a call see a partition that others do not.
TEST(MlaShards, LongSequences) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const int64_t position : {1020, 1533, 2046}) check_sequence(ops, position, 9);
    });
  }
}

TEST(MlaShards, OneShardIsThePlainCall) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      const Sequence s(precision, 70, 66, 3);
      const ShardPages pages(ops, s, {0, 1});
      PagedLatents plain(136, kWidth, page_dtype(precision));
      std::memset(plain.storage.data(), 0xff, static_cast<size_t>(plain.storage.bytes()));
      const MlaSegment all{0, 136, 0, plain.table};
      ops.store_latent({s.latents.view(), plain.pages, {&all, 1}});
      ASSERT_EQ(
          std::memcmp(plain.storage.data(), pages.cache.storage.data(), static_cast<size_t>(plain.storage.bytes())), 0);
      Matrix ctx = poisoned(66, kHeads * kLatent);
      const MlaSegment segment{0, 66, 70, plain.table};
      ops.mla({kHeads, kLatent, kScale, s.q.view(), plain.pages, {&segment, 1}, ctx.view()});
      EXPECT_TRUE(same_bits(ctx, pages.attend(ops, s, 0, 66).ctx));
    });
  }
}

TEST(MlaShards, TokensLieInTheirLocalRowsAndNothingElseIsTouched) {
  for_each_isa(Precision::f32, [&](const Ops& ops) {
    const Sequence s(Precision::f32, 395, 5, 4);
    for (const TokenShard shard : {TokenShard{0, 3}, TokenShard{1, 3}, TokenShard{2, 3}, TokenShard{5, 8}}) {
      const ShardPages pages(ops, s, shard);
      int64_t untouched = 0;
      for (const std::byte b : pages.cache.storage.as<std::byte>()) untouched += b == std::byte{0xff};
      int64_t owned = 0;
      for (int64_t token = 0; token < 400; ++token) {
        if (token % shard.count != shard.index) continue;
        const int64_t local = owned++;
        const std::byte* at = pages.cache.pages.base +
                              pages.cache.table[static_cast<size_t>(local / 64)] * pages.cache.pages.page_bytes() +
                              local % 64 * kWidth * 4;
        ASSERT_EQ(std::memcmp(at, s.latents.view().row(token), kWidth * 4), 0) << "token " << token;
      }
      EXPECT_EQ(owned, shard.local_rows(400));
      EXPECT_GE(untouched, pages.cache.storage.bytes() - owned * kWidth * 4);
    }
  });
}

// A row's bits, of ctx and lse, are the same alone, in any piece of its sequence, and with any number of threads.
TEST(MlaShards, CutsAndThreadsDoNotChangeBits) {
  ThreadPool one(1), nine(9);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      for (const auto& [position, rows] : {std::pair<int64_t, int64_t>{0, 150}, {1500, 45}, {4000, 1}}) {
        if (ops.name() == "reference" && position > 0) continue;  // slow, and one thread's work in any case
        const Sequence s(precision, position, rows, 5);
        for (const TokenShard shard : {TokenShard{0, 3}, TokenShard{2, 3}, TokenShard{7, 8}}) {
          SCOPED_TRACE(testing::Message() << position << " + " << rows << ", shard " << shard.index);
          const ShardPages pages(ops, s, shard);
          const Result whole = pages.attend(ops, s, 0, rows);
          for (ThreadPool* pool : {&one, &nine}) {
            const Result other = pages.attend(*make_ops(ops.name(), precision, *pool), s, 0, rows);
            ASSERT_TRUE(same_bits(other.ctx, whole.ctx));
            ASSERT_TRUE(same_bits(other.lse, whole.lse));
          }
          for (const int64_t step : {1, 7, 16, 64}) {
            for (int64_t begin = 0; begin < rows; begin += step) {
              const int64_t count = std::min(step, rows - begin);
              const Result part = pages.attend(ops, s, begin, count);
              ASSERT_TRUE(same_bits(part.ctx, rows_of(whole.ctx, begin, count))) << "rows from " << begin;
              ASSERT_TRUE(same_bits(part.lse, rows_of(whole.lse, begin, count))) << "rows from " << begin;
            }
          }
        }
      }
    });
  }
}

// A NaN token reaches the rows that see it, in its own shard's results, and no others.
TEST(MlaShards, NanStaysWithItsOwnReaders) {
  for_each_isa(Precision::bf16, [&](const Ops& ops) {
    Sequence s(Precision::bf16, 100, 12, 6);
    const std::vector<Result> clean = attend_all(ops, s, 4);
    std::fill_n(s.latents.view().row(106), kWidth, std::numeric_limits<float>::quiet_NaN());  // shard 2
    const std::vector<Result> broken = attend_all(ops, s, 4);
    for (size_t r = 0; r < 4; ++r) {
      const int64_t kept = r == 2 ? 6 : 12;
      EXPECT_TRUE(same_bits(rows_of(broken[r].ctx, 0, kept), rows_of(clean[r].ctx, 0, kept))) << r;
      EXPECT_TRUE(same_bits(rows_of(broken[r].lse, 0, kept), rows_of(clean[r].lse, 0, kept))) << r;
    }
    const Matrix merged = merge(ops, broken);
    EXPECT_TRUE(same_bits(rows_of(merged, 0, 6), rows_of(merge(ops, clean), 0, 6)));
    for (int64_t t = 6; t < 12; ++t) {
      EXPECT_TRUE(std::isnan(broken[2].lse.view().row(t)[0]));
      EXPECT_TRUE(std::isnan(merged.view().row(t)[0]));
    }
  });
}

// Several sequences in a call, of which some have nothing in the shard; strided results keep their margins.
TEST(MlaShards, BatchesWithSequencesThatHaveNothingHere) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for_each_isa(precision, [&](const Ops& ops) {
      const TokenShard shard{3, 4};
      const Sequence blind(precision, 0, 2, 7), half(precision, 1, 6, 8), full(precision, 300, 3, 9);
      const Sequence* all[] = {&blind, &half, &full};
      LatentPages pages{nullptr, page_dtype(precision), kWidth};
      Buffer storage(4 * pages.page_bytes());
      std::memset(storage.data(), 0xff, static_cast<size_t>(storage.bytes()));
      pages.base = storage.data();
      const std::vector<std::vector<int32_t>> tables = {{}, {3}, {2, 0}};
      std::vector<MlaSegment> segments;
      Matrix q(11, kHeads * kWidth);
      int64_t row = 0;
      for (size_t i = 0; i < 3; ++i) {
        const Sequence& s = *all[i];
        const MlaSegment stored{0, s.position + s.rows, 0, tables[i]};
        ops.store_latent({s.latents.view(), pages, {&stored, 1}, shard});
        segments.push_back({row, s.rows, s.position, tables[i]});
        std::copy_n(s.q.data(), s.rows * kHeads * kWidth, q.view().row(row));
        row += s.rows;
      }
      Strided ctx(11, kHeads * kLatent), lse(11, kHeads);
      ops.mla({kHeads, kLatent, kScale, q.view(), pages, segments, ctx.view(), shard, lse.view()});
      EXPECT_TRUE(ctx.margins_kept() && lse.margins_kept());
      for (size_t i = 0; i < 3; ++i) {
        const Result alone = ShardPages(ops, *all[i], shard).attend(ops, *all[i], 0, all[i]->rows);
        check_part(*all[i], shard, alone);
        EXPECT_TRUE(same_bits(alone.ctx, rows_of(ctx.dense(), segments[i].row_begin, segments[i].rows))) << i;
        EXPECT_TRUE(same_bits(alone.lse, rows_of(lse.dense(), segments[i].row_begin, segments[i].rows))) << i;
      }
    });
  }
}

}  // namespace
}  // namespace trireme::ops::test
