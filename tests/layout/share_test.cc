#include "layout/share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "layout/configs.h"

namespace trireme::layout {
namespace {

using checkpoint::CatalogueEntry;
using checkpoint::Split;
using Tensors = checkpoint::Group;
using testing::ModelConfig;

const CatalogueEntry& entry_of(const std::vector<CatalogueEntry>& entries, const std::string& name) {
  for (const CatalogueEntry& entry : entries) {
    if (entry.name == name) return entry;
  }
  throw Failure("no tensor " + name);
}

TEST(RangeOf, DividesEvenlyAndLeavesTheLastShort) {
  const auto shares = [](int64_t total, int64_t count) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < count; ++i) {
      const Range range = range_of(total, {i, count});
      EXPECT_EQ(range.begin, i == 0 ? 0 : range_of(total, {i - 1, count}).end);
      sizes.push_back(range.size());
    }
    EXPECT_EQ(range_of(total, {count - 1, count}).end, total);
    return sizes;
  };
  EXPECT_EQ(shares(12, 4), (std::vector<int64_t>{3, 3, 3, 3}));
  EXPECT_EQ(shares(10, 4), (std::vector<int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(shares(9, 4), (std::vector<int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(shares(2, 4), (std::vector<int64_t>{1, 1, 0, 0}));
  EXPECT_EQ(shares(0, 2), (std::vector<int64_t>{0, 0}));
}

TEST(SliceOf, DefaultShareIsTheWholeModel) {
  const ModelConfig config = testing::small();
  for (const CatalogueEntry& entry : checkpoint::catalogue(config)) {
    const auto slice = slice_of(entry, config, {});
    ASSERT_TRUE(slice) << entry.name;
    EXPECT_EQ(slice->row_begin, 0);
    EXPECT_EQ(slice->col_begin, 0);
    EXPECT_EQ(slice->rows, entry.shape[0]);
    EXPECT_EQ(slice->rows * slice->cols, entry.elements()) << entry.name;
    EXPECT_FALSE(is_sharded(entry, {})) << entry.name;
  }
}

TEST(SliceOf, CutsK3AsThePublishedDecodeDoes) {
  const ModelConfig config = testing::k3();
  Instance instance;
  instance.dp = 2;
  instance.tp = instance.dcp = 8;
  instance.weight_shard = 8;
  instance = resolve(instance, config);
  const RankShare share = share_of(instance, 11);  // second group, fourth rank
  ModelConfig few = config;
  few.moe.experts = 112;  // experts 0..111 are enough to look at; the split below uses the model's 896
  const auto entries = checkpoint::catalogue(few);
  const auto slice = [&](const std::string& name) { return *slice_of(entry_of(entries, name), config, share); };
  const auto expect = [&](const std::string& name, Slice right) {
    const Slice s = slice(name);
    EXPECT_EQ((std::vector{s.row_begin, s.rows, s.col_begin, s.cols}),
              (std::vector{right.row_begin, right.rows, right.col_begin, right.cols}))
        << name;
  };
  expect("layers.1.self_attn.q_proj", {3 * 1536, 1536, 0, 7168});
  expect("layers.1.self_attn.q_conv1d", {3 * 1536, 1536, 0, 4});
  expect("layers.1.self_attn.A_log", {36, 12, 0, 1});
  expect("layers.1.self_attn.dt_bias", {3 * 1536, 1536, 0, 1});
  expect("layers.1.self_attn.f_a_proj", {0, 128, 0, 7168});
  expect("layers.1.self_attn.o_proj", {0, 7168, 3 * 1536, 1536});
  expect("layers.3.self_attn.q_b_proj", {0, 18432, 0, 1536});  // every head, to attend to its own tokens
  expect("layers.3.self_attn.kv_b_proj", {0, 24576, 0, 512});
  expect("layers.3.self_attn.g_proj", {3 * 1536, 1536, 0, 7168});
  expect("layers.3.self_attn.kv_a_proj_with_mqa", {0, 576, 0, 7168});
  expect("layers.0.mlp.gate_proj", {3 * 4224, 4224, 0, 7168});
  expect("layers.0.mlp.down_proj", {0, 7168, 3 * 4224, 4224});
  expect("layers.1.block_sparse_moe.shared_experts.gate_proj", {3 * 768, 768, 0, 7168});
  expect("layers.1.block_sparse_moe.shared_experts.down_proj", {3 * 896, 896, 0, 6144});
  expect("layers.1.block_sparse_moe.routed_expert_down_proj", {3 * 448, 448, 0, 7168});
  expect("layers.1.block_sparse_moe.routed_expert_norm", {0, 3584, 0, 1});
  expect("lm_head", {3 * 20480, 20480, 0, 7168});
  // 56 experts a rank: rank 11 has 616..671, none of the first 112; rank 1 has 56..111.
  EXPECT_FALSE(slice_of(entry_of(entries, "layers.1.block_sparse_moe.experts.111.w1"), config, share));
  EXPECT_TRUE(slice_of(entry_of(entries, "layers.1.block_sparse_moe.experts.111.w1"), config, share_of(instance, 1)));
  EXPECT_TRUE(slice_of(entry_of(entries, "layers.1.block_sparse_moe.experts.56.w2"), config, share_of(instance, 1)));
  EXPECT_FALSE(slice_of(entry_of(entries, "layers.1.block_sparse_moe.experts.55.w2"), config, share_of(instance, 1)));
}

TEST(IsSharded, ListsTheSharedMatricesAndNoOther) {
  ModelConfig config = testing::small();
  config.layers = 4;
  config.kinds = {testing::LayerKind::kda, testing::LayerKind::mla, testing::LayerKind::kda, testing::LayerKind::mla};
  config.first_dense = 2;
  config.moe.experts = 2;
  RankShare share;
  share.weights = {1, 2};
  const auto names = [&] {
    std::set<std::string> found;
    for (const CatalogueEntry& entry : checkpoint::catalogue(config)) {
      if (is_sharded(entry, share)) found.insert(entry.name);
    }
    return found;
  };
  std::set<std::string> periphery;
  for (const char* layer : {"layers.2.block_sparse_moe.", "layers.3.block_sparse_moe."}) {
    for (const char* part : {"routed_expert_down_proj", "routed_expert_up_proj", "shared_experts.gate_proj",
                             "shared_experts.up_proj", "shared_experts.down_proj"}) {
      periphery.insert(std::string(layer) + part);
    }
  }
  std::set<std::string> all = periphery;
  for (const char* part : {"1.self_attn.q_b_proj", "1.self_attn.g_proj", "1.self_attn.o_proj", "3.self_attn.q_b_proj",
                           "3.self_attn.g_proj", "3.self_attn.o_proj", "2.self_attn.q_proj", "2.self_attn.k_proj",
                           "2.self_attn.v_proj", "2.self_attn.f_b_proj", "2.self_attn.g_proj", "2.self_attn.o_proj"}) {
    all.insert(std::string("layers.") + part);
  }
  EXPECT_EQ(names(), all);
  share.heads = {0, 2};
  EXPECT_EQ(names(), periphery);
  share.heads = {};
  config.kda.full_rank_gate = false;
  config.mla.q_lora.reset();
  EXPECT_TRUE(names().contains("layers.2.self_attn.g_b_proj"));
  EXPECT_FALSE(names().contains("layers.2.self_attn.g_a_proj"));
  EXPECT_TRUE(names().contains("layers.1.self_attn.q_proj"));
  share.weights = {};
  EXPECT_TRUE(names().empty());
}

TEST(LocalConfig, DividesHeadsOnly) {
  const ModelConfig config = testing::k3();
  RankShare share;
  share.heads = {5, 32};
  const ModelConfig local = local_config(config, share);
  EXPECT_EQ(local.kda.heads, 3);
  EXPECT_EQ(local.mla.heads, 3);
  EXPECT_EQ(local.hidden, config.hidden);
  EXPECT_EQ(local.layers, config.layers);
  EXPECT_EQ(local.dense_inter, config.dense_inter);
  EXPECT_EQ(local_config(config, {}).mla.heads, 96);
}

// Every element of a tensor, with the ranks of one stage that keep it.
class Owners {
 public:
  Owners(const CatalogueEntry& entry, const ModelConfig& config, const Instance& instance, int64_t stage)
      : columns_(entry.elements() / entry.shape[0]), owners_(static_cast<size_t>(entry.elements())) {
    for (int64_t i = 0; i < instance.ranks_per_stage(); ++i) {
      const auto rank = static_cast<int>(stage * instance.ranks_per_stage() + i);
      const auto slice = slice_of(entry, config, share_of(instance, rank));
      if (!slice) continue;
      for (int64_t r = slice->row_begin; r < slice->row_begin + slice->rows; ++r) {
        for (int64_t c = slice->col_begin; c < slice->col_begin + slice->cols; ++c) {
          owners_.at(static_cast<size_t>(r * columns_ + c)).push_back(rank);
        }
      }
    }
  }
  const std::vector<std::vector<int>>& elements() const { return owners_; }

 private:
  int64_t columns_;
  std::vector<std::vector<int>> owners_;
};

// How many ranks of `group` are among an element's owners.
int64_t count_in(const std::vector<int>& owners, const std::vector<int>& group) {
  int64_t count = 0;
  for (const int rank : owners) count += std::find(group.begin(), group.end(), rank) != group.end() ? 1 : 0;
  return count;
}

int64_t stage_of(const CatalogueEntry& entry, const Instance& instance) {
  if (entry.layer < 0) return entry.group == Tensors::embedding ? 0 : instance.stages() - 1;
  int64_t end = 0;
  for (int64_t stage = 0; stage < instance.stages(); ++stage) {
    end += instance.pipeline[static_cast<size_t>(stage)];
    if (entry.layer < end) return stage;
  }
  return -1;
}

// Checks one tensor in the stage that has it: exactly once in each group that divides it, on every rank if none does.
void check_owners(const CatalogueEntry& entry, const ModelConfig& config, const Instance& instance, int64_t stage) {
  const Owners owners(entry, config, instance, stage);
  const bool query =
      entry.group == Tensors::mla &&
      (entry.name.ends_with("q_b_proj") || entry.name.ends_with("q_proj") || entry.name.ends_with("kv_b_proj"));
  const int64_t first = stage * instance.ranks_per_stage();
  const bool sharded = is_sharded(entry, share_of(instance, first));
  for (int64_t i = 0; i < instance.ranks_per_stage(); ++i) {
    const int64_t rank = first + i;
    int64_t right = 1;
    Group group = Group::stage;
    if (sharded) {
      group = Group::weights;
    } else if (entry.split == Split::expert) {
      group = Group::experts;
    } else if (entry.split == Split::vocab_rows) {
      group = Group::vocab;
    } else if (entry.split == Split::replicated || entry.group == Tensors::shared) {
      right = instance.ranks_per_stage();
    } else {
      group = Group::attention;
      if (query) right = instance.dcp;
    }
    const auto ranks = members(instance, group, rank);
    for (const auto& element : owners.elements()) {
      ASSERT_EQ(count_in(element, ranks), right) << entry.name << " in " << group_name(group) << " of rank " << rank;
      if (query) {  // all ranks of a context group, or none
        const auto context = members(instance, Group::context, rank);
        const int64_t count = count_in(element, context);
        ASSERT_TRUE(count == 0 || count == std::ssize(context)) << entry.name;
      }
    }
  }
}

TEST(SliceOf, RandomInstancesOwnEveryElementOnceWhereItIsDivided) {
  testing::Rng rng(20240611);
  for (int round = 0; round < 60; ++round) {
    const ModelConfig config = testing::random_config(rng);
    const Instance instance = resolve(testing::random_instance(rng, config), config);
    SCOPED_TRACE(::testing::Message() << "round " << round << " tp " << instance.tp << " dcp " << instance.dcp << " dp "
                                      << instance.dp << " stages " << instance.stages());
    for (const CatalogueEntry& entry : checkpoint::catalogue(config)) {
      const int64_t home = stage_of(entry, instance);
      for (int64_t stage = 0; stage < instance.stages(); ++stage) {
        const bool tied_head =
            config.tied_embeddings && entry.group == Tensors::embedding && stage == instance.stages() - 1;
        if (stage == home || tied_head) {
          check_owners(entry, config, instance, stage);
          if (HasFatalFailure()) return;
        } else {
          const RankShare share = share_of(instance, stage * instance.ranks_per_stage());
          ASSERT_FALSE(slice_of(entry, config, share)) << entry.name << " on stage " << stage;
        }
      }
    }
  }
}

// A head's rows of q, k, v, conv, gate and bias and its columns of o_proj are on the same rank.
TEST(SliceOf, ARankHasAllPartsOfItsHeads) {
  testing::Rng rng(7);
  for (int round = 0; round < 60; ++round) {
    const ModelConfig config = testing::random_config(rng);
    Instance instance = testing::random_instance(rng, config);
    instance.weight_shard = 1;
    instance = resolve(instance, config);
    const auto entries = checkpoint::catalogue(config);
    for (int64_t rank = 0; rank < instance.ranks(); ++rank) {
      const RankShare share = share_of(instance, rank);
      const Range right = range_of(config.mla.heads, share.heads);
      const Range queries = range_of(config.mla.heads, share.query_heads);
      EXPECT_LE(queries.begin, right.begin);
      EXPECT_GE(queries.end, right.end);
      EXPECT_EQ(queries.size(), right.size() * instance.dcp);
      EXPECT_EQ(local_config(config, share).mla.heads, right.size());
      for (const CatalogueEntry& entry : entries) {
        if (entry.split != Split::head_rows && entry.split != Split::head_columns) continue;
        const auto slice = slice_of(entry, config, share);
        if (!slice) continue;
        const bool columns = entry.split == Split::head_columns;
        const int64_t per_head = (columns ? entry.shape[1] : entry.shape[0]) / config.mla.heads;
        const Range range = columns ? Range{slice->col_begin, slice->col_begin + slice->cols}
                                    : Range{slice->row_begin, slice->row_begin + slice->rows};
        const bool whole_queries = entry.group == Tensors::mla && !columns && !entry.name.ends_with("g_proj");
        EXPECT_EQ(range.begin, (whole_queries ? queries : right).begin * per_head) << entry.name;
        EXPECT_EQ(range.end, (whole_queries ? queries : right).end * per_head) << entry.name;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::layout
