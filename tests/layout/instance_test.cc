#include "layout/instance.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "layout/configs.h"

namespace trireme::layout {
namespace {

using testing::ModelConfig;

std::vector<int> iota(int first, int count, int step = 1) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

// Sixteen ranks as sixteen batches.
Instance decode_dp16() {
  Instance instance;
  instance.dp = 16;
  instance.ep = 16;
  instance.weight_shard = 8;
  instance.vocab = 8;
  instance.ranks_per_host = 8;
  return resolve(instance, testing::k3());
}

// Sixteen ranks as two batches of eight.
Instance decode_dp2_dcp8() {
  Instance instance;
  instance.dp = 2;
  instance.tp = instance.dcp = 8;
  instance.weight_shard = 8;
  instance.ranks_per_host = 8;
  return resolve(instance, testing::k3());
}

TEST(Groups, OfSixteenBatches) {
  const Instance instance = decode_dp16();
  ASSERT_EQ(instance.ranks(), 16);
  EXPECT_EQ(instance.pipeline, (std::vector<int64_t>{93}));
  for (int rank = 0; rank < 16; ++rank) {
    const int host = rank / 8 * 8;
    EXPECT_EQ(members(instance, Group::stage, rank), iota(0, 16));
    EXPECT_EQ(members(instance, Group::experts, rank), iota(0, 16));
    EXPECT_EQ(members(instance, Group::attention, rank), iota(rank, 1));
    EXPECT_EQ(members(instance, Group::context, rank), iota(rank, 1));
    EXPECT_EQ(members(instance, Group::pipeline, rank), iota(rank, 1));
    EXPECT_EQ(members(instance, Group::vocab, rank), iota(host, 8));
    EXPECT_EQ(members(instance, Group::weights, rank), iota(host, 8));
    const Place place = place_of(instance, rank);
    EXPECT_EQ(place.dp, rank);
    EXPECT_EQ(place.attention, 0);
    const RankShare share = share_of(instance, rank);
    EXPECT_TRUE(share.heads.whole());
    EXPECT_EQ(share.experts.index, rank);
    EXPECT_EQ(share.vocab.index, rank % 8);
    EXPECT_EQ(share.weights.index, rank % 8);
    EXPECT_EQ(range_of(896, share.experts).begin, 56 * rank);  // 56 experts a rank
    EXPECT_EQ(range_of(896, share.experts).size(), 56);
  }
}

TEST(Groups, OfTwoContextParallelBatches) {
  const Instance instance = decode_dp2_dcp8();
  ASSERT_EQ(instance.ranks(), 16);
  EXPECT_EQ(instance.ep, 16);
  EXPECT_EQ(instance.vocab, 8);
  for (int rank = 0; rank < 16; ++rank) {
    const int host = rank / 8 * 8;
    for (const Group group : {Group::attention, Group::context, Group::vocab, Group::weights}) {
      EXPECT_EQ(members(instance, group, rank), iota(host, 8)) << group_name(group);
    }
    EXPECT_EQ(members(instance, Group::experts, rank), iota(0, 16));
    const Place place = place_of(instance, rank);
    EXPECT_EQ(place.dp, rank / 8);
    EXPECT_EQ(place.attention, rank % 8);
    const RankShare share = share_of(instance, rank);
    EXPECT_EQ(share.heads.index, rank % 8);
    EXPECT_EQ(share.heads.count, 8);
    EXPECT_TRUE(share.query_heads.whole());
    EXPECT_EQ(share.tokens.index, rank % 8);
    EXPECT_EQ(share.tokens.count, 8);
  }
}

TEST(Groups, OfAPipelineOfTensorParallelStages) {
  Instance instance;
  instance.pipeline = {4, 3, 6};
  instance.tp = 4;
  instance.dcp = 2;
  instance.dp = 2;
  instance.ep = 4;
  instance = resolve(instance, testing::small());
  ASSERT_EQ(instance.ranks(), 24);
  const Place place = place_of(instance, 14);  // stage 1, its rank 6: batch 1, attention rank 2
  EXPECT_EQ(place.stage, 1);
  EXPECT_EQ(place.stage_rank, 6);
  EXPECT_EQ(place.dp, 1);
  EXPECT_EQ(place.attention, 2);
  EXPECT_EQ(members(instance, Group::stage, 14), iota(8, 8));
  EXPECT_EQ(members(instance, Group::pipeline, 14), iota(6, 3, 8));
  EXPECT_EQ(members(instance, Group::attention, 14), iota(12, 4));
  EXPECT_EQ(members(instance, Group::context, 14), iota(14, 2));
  EXPECT_EQ(members(instance, Group::experts, 14), iota(12, 4));
  EXPECT_EQ(members(instance, Group::vocab, 14), iota(12, 4));
  EXPECT_EQ(members(instance, Group::weights, 14), iota(14, 1));
  const RankShare share = share_of(instance, 14);
  EXPECT_EQ(share.layer_begin, 4);
  EXPECT_EQ(share.layer_end, 7);
  EXPECT_EQ(share.query_heads.index, 1);
  EXPECT_EQ(share.query_heads.count, 2);
  EXPECT_EQ(share.tokens.index, 0);
}

// Every rank of a group names the same group, it is in it, and the groups of a kind divide the ranks.
TEST(Groups, OfRandomInstancesAreTheSameFromEveryMember) {
  testing::Rng rng(42);
  for (int round = 0; round < 100; ++round) {
    const ModelConfig config = testing::random_config(rng);
    const Instance instance = resolve(testing::random_instance(rng, config), config);
    for (const Group group : {Group::stage, Group::pipeline, Group::attention, Group::context, Group::experts,
                              Group::vocab, Group::weights}) {
      std::set<int> seen;
      for (int rank = 0; rank < instance.ranks(); ++rank) {
        const auto ranks = members(instance, group, rank);
        ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
        ASSERT_EQ(std::count(ranks.begin(), ranks.end(), rank), 1) << group_name(group);
        for (const int other : ranks) ASSERT_EQ(members(instance, group, other), ranks) << group_name(group);
        if (ranks.front() == rank) seen.insert(ranks.begin(), ranks.end());
      }
      ASSERT_EQ(std::ssize(seen), instance.ranks());
    }
    // A group's order is the order of its shares.
    for (int rank = 0; rank < instance.ranks(); ++rank) {
      const RankShare share = share_of(instance, rank);
      const auto at = [&](Group group, int64_t index) {
        return members(instance, group, rank)[static_cast<size_t>(index)];
      };
      ASSERT_EQ(at(Group::attention, share.heads.index), rank);
      ASSERT_EQ(at(Group::context, share.tokens.index), rank);
      ASSERT_EQ(at(Group::experts, share.experts.index), rank);
      ASSERT_EQ(at(Group::vocab, share.vocab.index), rank);
      ASSERT_EQ(at(Group::weights, share.weights.index), rank);
    }
  }
}

TEST(Groups, RefuseRanksThatAreNot) {
  const Instance instance = decode_dp16();
  EXPECT_THROW(place_of(instance, -1), BadInput);
  EXPECT_THROW(members(instance, Group::stage, 16), BadInput);
  EXPECT_THROW(share_of(Instance{}, 0), Failure);  // not resolved
}

TEST(Resolve, FillsWhatIsOpen) {
  const ModelConfig config = testing::small();
  Instance instance = resolve({}, config);
  EXPECT_EQ(instance.pipeline, (std::vector<int64_t>{13}));
  EXPECT_EQ(instance.ranks(), 1);
  EXPECT_EQ(instance.ep, 1);
  EXPECT_EQ(instance.vocab, 1);
  instance = {};
  instance.dp = 2;
  instance.tp = 4;
  instance.pipeline_stages = 5;
  instance.eager_bank.enabled = true;
  instance = resolve(instance, config);
  EXPECT_EQ(instance.stages(), 5);
  EXPECT_EQ(instance.ep, 8);
  EXPECT_EQ(instance.vocab, 4);
  EXPECT_EQ(instance.eager_bank.stages, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(resolve(instance, config).pipeline, instance.pipeline);  // a resolved instance stays as it is
}

struct Refusal {
  std::string part;    // of the message: the setting and its value
  std::string advice;  // the value that would work
  std::function<void(Instance&, ModelConfig&)> change;
};

TEST(Resolve, RefusesByNameAndSaysWhatWouldWork) {
  const int64_t huge = int64_t{1} << 62;
  const std::vector<Refusal> refusals = {
      {"name", "\"p0\"", [](auto& i, auto&) { i.name = ""; }},
      {"attention.dp = 0", "1 to", [](auto& i, auto&) { i.dp = 0; }},
      {"attention.dp = -2", "1 to", [](auto& i, auto&) { i.dp = -2; }},
      {"attention.dp = 4611686018427387904", "1 to", [=](auto& i, auto&) { i.dp = huge; }},
      {"attention.tp = 0", "1 to", [](auto& i, auto&) { i.tp = 0; }},
      {"attention.tp = 5 does not divide the model's 8 heads", "1, 2, 4 or 8", [](auto& i, auto&) { i.tp = 5; }},
      {"attention.tp = 16 does not divide", "1, 2, 4 or 8", [](auto& i, auto&) { i.tp = 16; }},
      {"attention.tp = 8 does not divide the model's 12 KDA and 8 MLA heads", "1, 2 or 4",
       [](auto& i, auto& c) { i.tp = 8, c.kda.heads = 12; }},
      {"attention.tp = 8 does not divide the model's 8 KDA and 6 MLA heads", "1 or 2",
       [](auto& i, auto& c) { i.tp = 8, c.mla.heads = 6; }},
      {"attention.tp = 3 does not divide the model's 8 heads", "1, 2, 4 or 8",
       [](auto& i, auto& c) { i.tp = 3, c.kinds.assign(13, testing::LayerKind::mla), c.kda.heads = 0; }},
      {"attention.dcp = 0", "1 to", [](auto& i, auto&) { i.dcp = 0; }},
      {"attention.dcp = 3 does not divide attention.tp = 8", "1, 2, 4 or 8",
       [](auto& i, auto&) { i.tp = 8, i.dcp = 3; }},
      {"attention.dcp = 8 does not divide attention.tp = 4", "1, 2 or 4", [](auto& i, auto&) { i.tp = 4, i.dcp = 8; }},
      {"attention.dp = 65536 and attention.tp = 8", "smaller", [](auto& i, auto&) { i.dp = 65536, i.tp = 8; }},
      {"attention.dp = 40000 and attention.tp = 1 in 2 stages", "smaller",
       [](auto& i, auto&) { i.dp = 40000, i.pipeline_stages = 2; }},
      {"pipeline = [4, 3, 3] has 10 layers and the model 13", "[",
       [](auto& i, auto&) {
         i.pipeline = {4, 3, 3};
       }},
      {"pipeline = [4, 4, 4, 4] has more layers than the model's 13", "[",
       [](auto& i, auto&) {
         i.pipeline = {4, 4, 4, 4};
       }},
      {"pipeline = [4611686018427387904, 4611686018427387904, 13] has more", "[",
       [=](auto& i, auto&) {
         i.pipeline = {huge, huge, 13};
       }},
      {"pipeline gives stage 1 0 layers", "[",
       [](auto& i, auto&) {
         i.pipeline = {7, 0, 6};
       }},
      {"pipeline gives stage 0 -1 layers", "[",
       [](auto& i, auto&) {
         i.pipeline = {-1, 14};
       }},
      {"pipeline has 14 stages and the model 13 layers", "1 to 13",
       [](auto& i, auto&) { i.pipeline = std::vector<int64_t>(14, 1); }},
      {"pipeline has 20 stages and the model 13 layers", "1 to 13", [](auto& i, auto&) { i.pipeline_stages = 20; }},
      {"pipeline = -3", "13", [](auto& i, auto&) { i.pipeline_stages = -3; }},
      {"experts.ep = -1", "0 to", [](auto& i, auto&) { i.ep = -1; }},
      {"experts.ep = 3 does not divide the 4 ranks", "1, 2 or 4", [](auto& i, auto&) { i.dp = 4, i.ep = 3; }},
      {"experts.ep = 3 does not divide the model's 32 experts", "1 or 2", [](auto& i, auto&) { i.dp = 6, i.ep = 3; }},
      {"experts.ep = 6 (all ranks of a stage) does not divide the model's 32 experts", "1 or 2",
       [](auto& i, auto&) { i.dp = 6; }},
      {"experts.ep = 64 does not divide the model's 32 experts", "1, 2, 4, 8, 16 or 32",
       [](auto& i, auto&) { i.dp = 64, i.ep = 64; }},
      {"experts.max_dispatch_tokens = 0", "1 to", [](auto& i, auto&) { i.max_dispatch_tokens = 0; }},
      {"experts.max_dispatch_tokens = 16 is less than the 24 rows that row_bound = 24", "; 24",
       [](auto& i, auto&) { i.dp = 4, i.max_dispatch_tokens = 16, i.row_bound = 24; }},
      {"experts.max_dispatch_tokens = 5 is less than the 6 rows that row_bound = 6", "; 6",
       [](auto& i, auto&) { i.tp = 4, i.max_dispatch_tokens = 5, i.row_bound = 6; }},
      {"row_bound = 0", "1 to", [](auto& i, auto&) { i.row_bound = 0; }},
      {"vocab = -1", "0 to", [](auto& i, auto&) { i.vocab = -1; }},
      {"vocab = 3 does not divide the 8 ranks", "1, 2, 4 or 8", [](auto& i, auto&) { i.dp = 8, i.vocab = 3; }},
      {"vocab = 32 ranks are more than the model's 20 rows", "1, 2, 4, 8 or 16",
       [](auto& i, auto& c) { i.dp = 32, i.vocab = 32, c.vocab = 20; }},
      {"vocab = 8 needs its group on one host and ranks_per_host = 4", "1, 2 or 4",
       [](auto& i, auto&) { i.dp = 8, i.vocab = 8, i.ranks_per_host = 4; }},
      {"vocab = 4 needs its group on one host and ranks_per_host = 6", "1 or 2",
       [](auto& i, auto&) { i.dp = 8, i.vocab = 4, i.ranks_per_host = 6; }},
      {"vocab = 2 needs its group on one host and ranks_per_host = 3", "vocab = 1",
       [](auto& i, auto&) { i.dp = 2, i.vocab = 2, i.pipeline_stages = 2, i.ranks_per_host = 3; }},
      {"ranks_per_host = -8", "0 to", [](auto& i, auto&) { i.ranks_per_host = -8; }},
      {"attention.tp = 8 with attention.dcp = 2 needs its group on one host and ranks_per_host = 4",
       "attention.tp = 2 or 4", [](auto& i, auto&) { i.tp = 8, i.dcp = 2, i.ranks_per_host = 4, i.vocab = 4; }},
      {"attention.tp = 8 with attention.dcp = 8 needs its group on one host", "attention.dcp = 1",
       [](auto& i, auto&) { i.tp = 8, i.dcp = 8, i.ranks_per_host = 4, i.vocab = 4; }},
      {"weight_shard = 0", "1 to", [](auto& i, auto&) { i.weight_shard = 0; }},
      {"weight_shard = 3 does not divide the 8 ranks", "1, 2, 4 or 8",
       [](auto& i, auto&) { i.dp = 8, i.weight_shard = 3; }},
      {"weight_shard = 8 needs its group on one host and ranks_per_host = 4", "1, 2 or 4",
       [](auto& i, auto&) { i.dp = 8, i.weight_shard = 8, i.ranks_per_host = 4; }},
      {"weight_shard = 2 has nothing to share", "weight_shard = 1",
       [](auto& i, auto& c) { i.tp = 2, i.weight_shard = 2, c.moe.latent.reset(), c.moe.shared_inter = 0; }},
      {"weight_shard = 2 has nothing to share", "weight_shard = 1",
       [](auto& i, auto& c) { i.dp = 2, i.weight_shard = 2, c.layers = 1, c.kinds.resize(1); }},
      {"role = \"prefill\"", "attention.dcp = 1", [](auto& i, auto&) { i.role = Role::prefill, i.tp = 2, i.dcp = 2; }},
      {"pipeline = [6, 7] has 2 stages and role = \"decode\"", "pipeline = [13]",
       [](auto& i, auto&) {
         i.role = Role::decode, i.pipeline = {6, 7};
       }},
      {"prefill.chunk_tokens = 0", "1 to", [](auto& i, auto&) { i.chunk_tokens = 0; }},
      {"prefill.async_depth = -1", "0 to", [](auto& i, auto&) { i.async_depth = -1; }},
      {"prefill.async_depth = 2 has no effect", "2 stages", [](auto& i, auto&) { i.async_depth = 2; }},
      {"prefill.dynamic_chunking = true has no effect", "2 stages", [](auto& i, auto&) { i.dynamic_chunking = true; }},
      {"prefill.warmup = 0", "1 to 4096",
       [](auto& i, auto&) {
         i.warmup = {64, 0};
       }},
      {"prefill.warmup = 5000", "1 to 4096", [](auto& i, auto&) { i.warmup = {5000}; }},
      {"eager_bank has no effect on one stage", "leaving it out", [](auto& i, auto&) { i.eager_bank.enabled = true; }},
      {"eager_bank has no effect in a pipeline of 2 stages", "leaving it out",
       [](auto& i, auto&) { i.eager_bank.enabled = true, i.pipeline_stages = 2; }},
      {"eager_bank has no effect: the model has no residual bank", "leaving it out",
       [](auto& i, auto& c) { i.eager_bank.enabled = true, i.pipeline_stages = 4, c.residual_block.reset(); }},
      {"eager_bank.stages holds 0, which inherits no rows", "1 or 2",
       [](auto& i, auto&) { i.eager_bank.enabled = true, i.pipeline_stages = 4, i.eager_bank.stages = {0}; }},
      {"eager_bank.stages holds 3, the last stage", "1 or 2",
       [](auto& i, auto&) {
         i.eager_bank.enabled = true, i.pipeline_stages = 4, i.eager_bank.stages = {1, 3};
       }},
      {"eager_bank.stages holds 7, which is no stage", "1 or 2",
       [](auto& i, auto&) { i.eager_bank.enabled = true, i.pipeline_stages = 4, i.eager_bank.stages = {7}; }},
      {"eager_bank.stages = [1, 1] holds 1 twice", "once",
       [](auto& i, auto&) {
         i.eager_bank.enabled = true, i.pipeline_stages = 4, i.eager_bank.stages = {1, 1};
       }},
      {"eager_bank.stages = [1] has no effect while", "[]", [](auto& i, auto&) { i.eager_bank.stages = {1}; }},
  };
  EXPECT_GE(refusals.size(), 40U);
  for (const Refusal& refusal : refusals) {
    Instance instance;
    instance.name = "d7";
    ModelConfig config = testing::small();
    refusal.change(instance, config);
    try {
      resolve(instance, config);
      ADD_FAILURE() << "accepted: " << refusal.part;
    } catch (const BadInput& error) {
      const std::string message = error.what();
      const size_t at = message.find(refusal.part);
      EXPECT_NE(at, std::string::npos) << message << "\nlacks " << refusal.part;
      const size_t advice = message.rfind("; ");
      ASSERT_NE(advice, std::string::npos) << message;
      EXPECT_NE(message.find(refusal.advice, advice), std::string::npos) << message << "\nlacks " << refusal.advice;
      EXPECT_TRUE(message.ends_with("would work")) << message;
      if (!instance.name.empty()) {
        EXPECT_TRUE(message.starts_with("instance \"d7\": ")) << message;
      }
      EXPECT_EQ(message.find('\n'), std::string::npos);
    }
  }
}

// Groups inside hosts, and a host that need not be full.
TEST(Resolve, AcceptsHostsThatHoldTheirGroups) {
  ModelConfig config = testing::small();
  config.dense_inter = 24;
  config.moe.latent = 12;
  config.moe.shared_inter = 8;
  Instance instance;
  instance.dp = 3;
  instance.tp = instance.dcp = 4;
  instance.ep = 4;
  instance.ranks_per_host = 8;  // 12 ranks: the second host is half full
  instance.weight_shard = 4;
  EXPECT_EQ(resolve(instance, config).ranks(), 12);
  instance = {};
  instance.tp = 8;  // without context parallelism an attention group may span hosts
  instance.vocab = 4;
  instance.ranks_per_host = 4;
  EXPECT_EQ(resolve(instance, config).vocab, 4);
}

}  // namespace
}  // namespace trireme::layout
