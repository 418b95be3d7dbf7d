// The two ways of a weight shard: fewer bytes with equal bits, and the same choice on all ranks.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/local.h"
#include "engine/rank.h"
#include "layout/traffic.h"
#include "model/weight_shard.h"
#include "steps/tiny_models.h"
#include "support/loaded_model.h"

namespace trireme::testing {
namespace {

constexpr int64_t kRanks = 8;

layout::Instance sharded(bool move_smaller) {
  layout::Instance instance;
  instance.dp = instance.weight_shard = kRanks;
  instance.move_smaller = move_smaller;
  return instance;
}

int32_t token_of(int64_t rank, int64_t row) { return static_cast<int32_t>((7 * rank + 3 * row + 1) % 60); }

// What each rank sent and saw.
struct Outcome {
  std::vector<std::vector<std::vector<float>>> logits;  // by rank, step
  std::vector<std::vector<int64_t>> bytes;              // for the sharded weights, either way
  std::vector<std::vector<int64_t>> gathered;           // by the gather stream
};

int64_t sent(const engine::Rank& rank, const std::string& group) {
  int64_t bytes = 0;
  for (const auto& [name, traffic] : rank.traffic()) {
    for (const auto& count : traffic.by) bytes += name == group ? count.bytes : 0;
  }
  return bytes;
}

// Steps of rows[step][rank] new rows in a sequence a rank.
Outcome run(const std::filesystem::path& model, layout::Instance instance, ops::Precision precision,
            const std::vector<std::vector<int64_t>>& rows) {
  instance = resolved(std::move(instance), model);
  Outcome out;
  out.logits.resize(kRanks);
  out.bytes.resize(kRanks);
  out.gathered.resize(kRanks);
  comm::run_local(kRanks, checked(), [&](comm::World& world) {
    const auto me = static_cast<size_t>(world.rank());
    int64_t tokens = 1;
    for (const auto& step : rows) tokens += step[me];
    int64_t pages = 0;
    for (const auto& step : rows) pages += *std::max_element(step.begin(), step.end());
    engine::Rank rank(model, instance, rank_options(precision, pages + 1, 1), world);
    std::vector<int32_t> all_pages;
    for (int64_t p = 0; p <= tokens / ops::kPageTokens; ++p) all_pages.push_back(static_cast<int32_t>(p));
    int64_t position = 0;
    for (const auto& step : rows) {
      const int64_t bytes = sent(rank, "weights");
      const int64_t gathered = sent(rank, "weights gather");
      model::Batch batch;
      for (int64_t r = 0; r < step[me]; ++r) batch.tokens.push_back(token_of(world.rank(), position + r));
      if (step[me] > 0) {
        batch.segments.push_back({step[me], position, 0, all_pages, true, {}});
        batch.logit_rows = {step[me] - 1};
      }
      rank.run({&batch, 1}, [&](size_t, const model::ForwardOutput& output) {
        const float* data = output.logits.data();
        out.logits[me].emplace_back(data, data + output.logits.rows() * output.logits.cols());
      });
      position += step[me];
      out.gathered[me].push_back(sent(rank, "weights gather") - gathered);
      out.bytes[me].push_back(sent(rank, "weights") - bytes + out.gathered[me].back());
    }
  });
  return out;
}

void expect_smaller(const std::filesystem::path& model, ops::Precision precision) {
  const std::vector<std::vector<int64_t>> rows(4, std::vector<int64_t>(kRanks, 1));
  const Outcome moved = run(model, sharded(true), precision, rows);
  const Outcome gathered = run(model, sharded(false), precision, rows);
  // The weights are as they are stored; rows are four bytes a value in f32.
  const int64_t times = precision == ops::Precision::bf16 ? 20 : 10;
  const LoadedModel alone(model, "auto", precision);
  for (size_t r = 0; r < kRanks; ++r) {
    Pools pools = alone.pools(1, 64);
    Sequence sequence(alone.model, pools, 0);
    for (size_t s = 0; s < rows.size(); ++s) {
      EXPECT_GE(gathered.bytes[r][s], times * moved.bytes[r][s]) << "rank " << r;
      EXPECT_EQ(moved.gathered[r][s], 0);
      const int32_t token = token_of(static_cast<int64_t>(r), static_cast<int64_t>(s));
      const Matrix expected = sequence.feed({&token, 1});
      EXPECT_TRUE(same_bits(moved.logits[r][s], row_of(expected, 0))) << "rank " << r << ", step " << s;
      EXPECT_TRUE(same_bits(gathered.logits[r][s], row_of(expected, 0))) << "rank " << r << ", step " << s;
    }
  }
}

TEST(Shard, OneRowARankMovesATwentiethOfTheBytesOfNano) {
  expect_smaller(nano(), ops::Precision::f32);
  expect_smaller(nano(), ops::Precision::bf16);
}

TEST(Shard, OneRowARankMovesATwentiethOfTheBytesOfARandomModel) {
  const RandomCheckpoint model(wide_recipe());
  expect_smaller(model.dir(), ops::Precision::f32);
  expect_smaller(model.dir(), ops::Precision::bf16);
}

// The halves of the layers as the model was loaded.
struct Halves {
  Halves(const std::filesystem::path& model, ops::Precision precision)
      : ops(ops::make_ops("auto", precision, pool)), checkpoint(checkpoint::Checkpoint::open(model)) {
    const layout::Instance instance = resolved(sharded(true), model);
    const layout::RankShare share = layout::share_of(instance, 3);
    ledger::Account account(ledger::plan_memory(checkpoint, *ops, {}, share));
    weights = model::load_weights(checkpoint, *ops, account, share);
    planned = layout::shard_layers(checkpoint.config(), share, [&](const auto& entry, int64_t rows) {
      const WeightView stored = checkpoint.stored(entry.name);
      return ops->packed_bytes(stored.format, rows, stored.cols);
    });
  }
  // Blocks [first, last) of half 0 or 1 of a layer.
  std::pair<size_t, size_t> blocks(size_t layer, int half) const {
    const model::ShardedWeights& s = weights.layers[layer].sharded;
    size_t split = 0;
    while (split < s.blocks.size() && s.blocks[split].offset < s.attention_bytes) ++split;
    return half == 0 ? std::pair<size_t, size_t>{0, split} : std::pair<size_t, size_t>{split, s.blocks.size()};
  }
  model::ShardCost cost(size_t layer, int half, int64_t rows) const {
    const auto [first, last] = blocks(layer, half);
    return model::shard_cost(weights.layers[layer].sharded, first, last, kRanks, rows, ops->precision());
  }

  ThreadPool pool{1};
  std::unique_ptr<ops::Ops> ops;
  checkpoint::Checkpoint checkpoint;
  model::ModelWeights weights;
  std::vector<layout::ShardLayer> planned;
};

TEST(Shard, CostIsThatOfTheFormulas) {
  const RandomCheckpoint model(wide_recipe());
  for (const ops::Precision precision : {ops::Precision::f32, ops::Precision::bf16}) {
    const Halves halves(model.dir(), precision);
    const comm::Wire wire = model::wire_of(*halves.ops);
    for (size_t l = 0; l < halves.planned.size(); ++l) {
      for (const int half : {0, 1}) {
        const layout::ShardHalf& planned = halves.planned[l][static_cast<size_t>(half)];
        EXPECT_EQ(planned.blocks.empty(), l == 0);
        for (const int64_t rows : {1, 2, 33}) {
          const model::ShardCost cost = halves.cost(l, half, rows);
          EXPECT_EQ(cost.gather, planned.gather(kRanks));
          EXPECT_EQ(cost.move, planned.move(kRanks, rows, wire));
        }
      }
    }
  }
}

// Rank 5 has the most rows, the others fewer or none; what the gather stream sends says what was chosen.
TEST(Shard, TheChoiceFlipsWhereTheCostsCrossOnAllRanksAlike) {
  const RandomCheckpoint model(wide_recipe());
  for (const ops::Precision precision : {ops::Precision::f32, ops::Precision::bf16}) {
    const Halves halves(model.dir(), precision);
    std::set<int64_t> sizes = {1};
    for (size_t l = 1; l < halves.planned.size(); ++l) {
      for (const layout::ShardHalf& half : halves.planned[l]) {
        const int64_t crossover = half.crossover(kRanks, model::wire_of(*halves.ops));
        sizes.insert({crossover - 1, crossover, crossover + 1});
      }
    }
    std::vector<std::vector<int64_t>> rows;
    for (const int64_t most : sizes) rows.push_back({0, 1, most / 2, 0, 1, most, most - 1, 0});
    const Outcome out = run(model.dir(), sharded(true), precision, rows);
    std::set<int64_t> choices;
    size_t step = 0;
    for (const int64_t most : sizes) {
      int64_t expected = 0;
      for (size_t l = 1; l < halves.planned.size(); ++l) {
        for (const int half : {0, 1}) {
          const model::ShardCost cost = halves.cost(l, half, most);
          if (cost.gather <= cost.move) expected += cost.gather;
        }
      }
      for (size_t r = 0; r < kRanks; ++r) EXPECT_EQ(out.gathered[r][step], expected) << "rank " << r << ", " << most;
      choices.insert(expected);
      ++step;
    }
    EXPECT_GE(choices.size(), 4U);  // nothing, some, all: KDA, MLA and MLP halves cross apart
    // Whatever was chosen, the bits are one rank's.
    const LoadedModel alone(model.dir(), "auto", precision);
    for (size_t r = 0; r < kRanks; ++r) {
      Pools pools = alone.pools(1, 4096);
      Sequence sequence(alone.model, pools, 0);
      for (size_t s = 0; s < rows.size(); ++s) {
        if (rows[s][r] == 0) continue;
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < rows[s][r]; ++i)
          tokens.push_back(token_of(static_cast<int64_t>(r), sequence.position() + i));
        const Matrix expected = sequence.feed(tokens);
        EXPECT_TRUE(same_bits(out.logits[r][s], row_of(expected, rows[s][r] - 1))) << "rank " << r << ", step " << s;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::testing
