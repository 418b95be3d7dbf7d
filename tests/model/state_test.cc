// How a sequence is cut into passes, what else is in a batch, checkpoints, and verification with replay: none of it may
// change a bit.
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "support/loaded_model.h"
#include "support/tensors.h"

namespace trireme::testing {
namespace {

using ops::Precision;

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(uniform_at(seed, static_cast<uint64_t>(i), 0) * static_cast<double>(vocab)));
  }
  return tokens;
}

using Parameter = std::tuple<std::string, Precision>;

class StateTest : public ::testing::TestWithParam<Parameter> {
 protected:
  // One model for all tests of an instance: loading costs more than most of them.
  static LoadedModel& loaded() {
    static std::map<Parameter, std::unique_ptr<LoadedModel>> models;
    std::unique_ptr<LoadedModel>& m = models[GetParam()];
    if (!m)
      m = std::make_unique<LoadedModel>(source_dir() / "models/k3-nano", std::get<0>(GetParam()),
                                        std::get<1>(GetParam()));
    return *m;
  }
  // The reference backend is slow, so it goes through fewer cases.
  static bool slow() { return std::get<0>(GetParam()) == "reference"; }
  static std::vector<int32_t> tokens(int64_t count, uint64_t seed = 1) {
    return random_tokens(count, loaded().model.config().vocab, seed);
  }
};

void expect_rows_equal(const Matrix& got, const Matrix& want, int64_t begin) {
  for (int64_t r = 0; r < got.rows(); ++r) {
    ASSERT_TRUE(same_bits(row_of(got, r), row_of(want, begin + r))) << "row " << begin + r;
  }
}

TEST_P(StateTest, EverySplitOfPrefillAndDecodeGivesTheSameBits) {
  const std::vector<int32_t> ids = tokens(slow() ? 8 : 67);
  const auto count = static_cast<int64_t>(ids.size());
  Pools pools = loaded().pools(2, count);
  const Matrix straight = Sequence(loaded().model, pools, 0).feed(ids);
  for (int64_t n = 1; n < count; n += slow() ? 3 : 1) {
    Sequence cut(loaded().model, pools, 1);
    const std::span<const int32_t> all(ids);
    expect_rows_equal(cut.feed(all.first(static_cast<size_t>(n))), straight, 0);
    // One decode step after every split, then a second prefill; step by step to the end (across 64, a page's edge)
    // after some.
    const bool edge = n == 15 || n == 17 || n >= 63;
    if (!edge) expect_rows_equal(cut.feed(all.subspan(static_cast<size_t>(n), 1)), straight, n);
    const int64_t at = cut.position();
    if (at < count) expect_rows_equal(cut.feed(all.subspan(static_cast<size_t>(at)), edge ? 1 : 0), straight, at);
    ASSERT_TRUE(same_bits(pools.state(1), pools.state(0))) << "split at " << n;
  }
}

TEST_P(StateTest, ChunkSizeDoesNotChangeBits) {
  const std::vector<int32_t> ids = tokens(slow() ? 8 : 130);
  Pools pools = loaded().pools(2, static_cast<int64_t>(ids.size()));
  const Matrix whole = Sequence(loaded().model, pools, 0).feed(ids);
  for (const int64_t chunk : {1, 7, 64, 65}) {
    SCOPED_TRACE(chunk);
    expect_rows_equal(Sequence(loaded().model, pools, 1).feed(ids, chunk), whole, 0);
    ASSERT_TRUE(same_bits(pools.state(1), pools.state(0)));
  }
}

// Prefill, a later chunk and decode steps of several sequences in one batch.
TEST_P(StateTest, BatchOfUnequalLengthsEqualsEachAlone) {
  const std::vector<std::pair<int64_t, int64_t>> parts = {
      {0, 9}, {slow() ? 3 : 64, 1}, {5, 6}, {slow() ? 2 : 64, 3}, {0, 1}};
  const auto count = static_cast<int64_t>(parts.size());
  Pools pools = loaded().pools(2 * count, 80);
  model::Batch batch;
  std::vector<Matrix> alone;
  for (int64_t i = 0; i < count; ++i) {
    const auto [before, rows] = parts[static_cast<size_t>(i)];
    const std::vector<int32_t> ids = tokens(before + rows, static_cast<uint64_t>(10 + i));
    const std::span<const int32_t> all(ids);
    const auto head = all.first(static_cast<size_t>(before));
    const auto tail = all.subspan(static_cast<size_t>(before));
    Sequence single(loaded().model, pools, static_cast<int32_t>(i));
    Sequence batched(loaded().model, pools, static_cast<int32_t>(count + i));
    if (before > 0) single.feed(head);
    if (before > 0) batched.feed(head);
    alone.push_back(single.feed(tail));
    batch.tokens.insert(batch.tokens.end(), tail.begin(), tail.end());
    batch.segments.push_back(batched.segment(rows));
  }
  batch.logit_rows.resize(batch.tokens.size());
  std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
  const model::ForwardOutput out = loaded().model.forward(batch, pools.views());
  int64_t row = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t r = 0; r < alone[static_cast<size_t>(i)].rows(); ++r) {
      EXPECT_TRUE(same_bits(row_of(out.logits, row++), row_of(alone[static_cast<size_t>(i)], r)))
          << "sequence " << i << " row " << r;
    }
    EXPECT_TRUE(same_bits(pools.state(static_cast<int32_t>(i)), pools.state(static_cast<int32_t>(count + i)))) << i;
  }
}

TEST_P(StateTest, LogitsOfChosenRowsOnly) {
  const std::vector<int32_t> ids = tokens(12);
  Pools pools = loaded().pools(2, 12);
  const Matrix all = Sequence(loaded().model, pools, 0).feed(ids);
  const Sequence other(loaded().model, pools, 1);
  const model::Batch batch{ids, {other.segment(12)}, {3, 11}};
  const Matrix some = loaded().model.forward(batch, pools.views()).logits;
  ASSERT_EQ(some.rows(), 2);
  EXPECT_TRUE(same_bits(row_of(some, 0), row_of(all, 3)));
  EXPECT_TRUE(same_bits(row_of(some, 1), row_of(all, 11)));
}

TEST_P(StateTest, CheckpointInsideASegmentContinuesBitIdentically) {
  const int64_t count = slow() ? 6 : 70;
  const std::vector<int64_t> at = slow() ? std::vector<int64_t>{1, 4, 6} : std::vector<int64_t>{1, 2, 3, 16, 64, 70};
  for (const int64_t before :
       {0, 2}) {  // the first rows of a second chunk reach back into the saved convolution inputs
    const std::vector<int32_t> ids = tokens(before + count);
    const std::span<const int32_t> all(ids);
    const auto slots = static_cast<int32_t>(at.size());
    Pools pools = loaded().pools(slots + 2, before + count);
    Sequence sequence(loaded().model, pools, 0);
    if (before > 0) sequence.feed(all.first(static_cast<size_t>(before)));
    model::Batch batch;
    batch.tokens.assign(ids.begin() + before, ids.end());
    batch.segments.push_back(sequence.segment(count));
    for (int32_t i = 0; i < slots; ++i) batch.segments[0].checkpoints.push_back({at[static_cast<size_t>(i)], i + 2});
    batch.logit_rows.resize(static_cast<size_t>(count));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    const Matrix straight = loaded().model.forward(batch, pools.views()).logits;
    for (int32_t i = 0; i < slots; ++i) {
      const int64_t rows = at[static_cast<size_t>(i)];
      Sequence shorter(loaded().model, pools, 1);
      shorter.feed(all.first(static_cast<size_t>(before + rows)));
      ASSERT_TRUE(same_bits(pools.state(i + 2), pools.state(1))) << "checkpoint after " << rows << " rows";
      if (rows == count) continue;
      // Restored into the slot it came from: pages of the first sequence still hold the rows before the checkpoint.
      pools.copy_slot(i + 2, 0);
      sequence.set_position(before + rows);
      expect_rows_equal(sequence.feed(all.subspan(static_cast<size_t>(before + rows))), straight, rows);
    }
  }
}

// Rows run without commit and folded in later, as speculation does, against the same rows run with commit.
TEST_P(StateTest, VerifyAndCommitEqualsStraightRun) {
  constexpr int64_t kDrafted = 6;
  for (const int64_t before : slow() ? std::vector<int64_t>{2} : std::vector<int64_t>{0, 2, 17}) {
    const std::vector<int32_t> ids = tokens(before + kDrafted + 3);
    const std::span<const int32_t> all(ids);
    Pools pools = loaded().pools(3, before + kDrafted + 3);
    const Matrix straight = Sequence(loaded().model, pools, 0).feed(ids);
    for (int64_t accepted = 0; accepted <= kDrafted; accepted += slow() ? 3 : 1) {
      SCOPED_TRACE(::testing::Message() << before << " tokens before, " << accepted << " accepted");
      Sequence sequence(loaded().model, pools, 1);
      if (before > 0) sequence.feed(all.first(static_cast<size_t>(before)));
      const std::vector<float> old = pools.state(1);
      // A committed segment of another sequence in the same batch stays out of the replay.
      Sequence neighbour(loaded().model, pools, 2);
      model::Batch batch;
      batch.tokens = {5, 6};
      batch.segments.push_back(neighbour.segment(2));
      batch.tokens.insert(batch.tokens.end(), ids.begin() + before, ids.begin() + before + kDrafted);
      batch.segments.push_back(sequence.segment(kDrafted));
      batch.segments[1].commit = false;
      for (int64_t r = 0; r < kDrafted; ++r) batch.logit_rows.push_back(2 + r);
      const model::ForwardOutput out = loaded().model.forward(batch, pools.views());
      expect_rows_equal(out.logits, straight, before);
      ASSERT_TRUE(same_bits(pools.state(1), old)) << "verification wrote the state";
      ASSERT_NE(out.replay, nullptr);
      const std::vector<float> other = pools.state(2);
      loaded().model.commit(batch, *out.replay, std::vector<int64_t>{2, accepted}, pools.views());
      ASSERT_TRUE(same_bits(pools.state(2), other)) << "commit touched a committed segment";
      if (accepted == 0) {
        ASSERT_TRUE(same_bits(pools.state(1), old));
        continue;
      }
      sequence.set_position(before + accepted);
      const auto rest = all.subspan(static_cast<size_t>(before + accepted));
      expect_rows_equal(sequence.feed(rest, 2), straight, before + accepted);
      ASSERT_TRUE(same_bits(pools.state(1), pools.state(0)));
    }
  }
}

TEST_P(StateTest, ThreadsDoNotChangeBits) {
  if (slow()) GTEST_SKIP() << "one more load of the slow backend";
  const std::vector<int32_t> ids = tokens(40);
  Pools pools = loaded().pools(1, 40);
  const Matrix one = Sequence(loaded().model, pools, 0).feed(ids);
  const LoadedModel three(source_dir() / "models/k3-nano", std::get<0>(GetParam()), std::get<1>(GetParam()), 3);
  Pools other = three.pools(1, 40);
  expect_rows_equal(Sequence(three.model, other, 0).feed(ids), one, 0);
  EXPECT_TRUE(same_bits(pools.state(0), other.state(0)));
}

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const std::string_view isa : ops::available_isas()) {
    if (isa != "reference") all.emplace_back(isa, Precision::bf16);
    if (isa == "reference" || isa == ops::available_isas().front()) all.emplace_back(isa, Precision::f32);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Isa, StateTest, ::testing::ValuesIn(parameters()), [](const auto& param) {
  return std::get<0>(param.param) + (std::get<1>(param.param) == Precision::bf16 ? "_bf16" : "_f32");
});

TEST(ForwardErrors, NameWhatIsWrong) {
  const LoadedModel loaded(source_dir() / "models/k3-nano", "auto", Precision::bf16);
  Pools pools = loaded.pools(1, 64);
  const Sequence sequence(loaded.model, pools, 0);
  const auto message = [&](const model::Batch& batch) -> std::string {
    try {
      loaded.model.forward(batch, pools.views());
    } catch (const BadInput& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message({{2048}, {sequence.segment(1)}, {}}), "token 2048 is outside the vocabulary of 2048 entries");
  EXPECT_EQ(message({{-1}, {sequence.segment(1)}, {}}), "token -1 is outside the vocabulary of 2048 entries");
  EXPECT_EQ(message({{1, 2}, {sequence.segment(1)}, {}}), "forward pass: segments have 1 rows, the batch has 2 tokens");
  EXPECT_EQ(message({{1}, {sequence.segment(1)}, {1}}),
            "forward pass: logit row 1 of a batch of 1 rows; they must rise");
  model::Segment far = sequence.segment(1);
  far.position = 64;
  EXPECT_EQ(message({{1}, {far}, {}}), "forward pass: segment 0 ends at token 65 and has 1 pages, it needs 2");
}

}  // namespace
}  // namespace trireme::testing
