#include "layout/instance.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trireme::layout {
namespace {

struct Block {
  int64_t first = 0;
  int64_t size = 0;
  int64_t stride = 1;
};

Block block_of(const Instance& instance, Group group, const Place& place) {
  const int64_t stage_first = place.rank - place.stage_rank;
  // The run of `size` ranks of the stage that this rank is in.
  const auto run = [&](int64_t size) { return Block{stage_first + place.stage_rank / size * size, size}; };
  switch (group) {
    case Group::stage:
      return run(instance.ranks_per_stage());
    case Group::pipeline:
      return {place.stage_rank, instance.stages(), instance.ranks_per_stage()};
    case Group::attention:
      return run(instance.tp);
    case Group::context:
      return run(instance.dcp);  // dcp divides tp: no run crosses an attention group
    case Group::experts:
      return run(instance.ep);
    case Group::vocab:
      return run(instance.vocab);
    case Group::weights:
      return run(instance.weight_shard);
  }
  throw Failure(fmt::format("no group {}", static_cast<int>(group)));
}

}  // namespace

std::string_view group_name(Group group) {
  switch (group) {
    case Group::stage:
      return "stage";
    case Group::pipeline:
      return "pipeline";
    case Group::attention:
      return "attention";
    case Group::context:
      return "context";
    case Group::experts:
      return "experts";
    case Group::vocab:
      return "vocab";
    case Group::weights:
      return "weights";
  }
  return "?";
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::unified:
      return "unified";
    case Role::prefill:
      return "prefill";
    case Role::decode:
      return "decode";
  }
  return "?";
}

Place place_of(const Instance& instance, int64_t rank) {
  if (instance.pipeline.empty() || instance.ep < 1 || instance.vocab < 1) {
    throw Failure(fmt::format("instance \"{}\" was not resolved", instance.name));
  }
  if (rank < 0 || rank >= instance.ranks()) {
    throw BadInput(fmt::format("instance \"{}\" has no rank {}; its ranks are 0 to {}", instance.name, rank,
                               instance.ranks() - 1));
  }
  Place place;
  place.rank = rank;
  place.stage = rank / instance.ranks_per_stage();
  place.stage_rank = rank % instance.ranks_per_stage();
  place.dp = place.stage_rank / instance.tp;
  place.attention = place.stage_rank % instance.tp;
  return place;
}

std::vector<int> members(const Instance& instance, Group group, int64_t rank) {
  const Block block = block_of(instance, group, place_of(instance, rank));
  std::vector<int> ranks;
  for (int64_t i = 0; i < block.size; ++i) ranks.push_back(static_cast<int>(block.first + i * block.stride));
  return ranks;
}

RankShare share_of(const Instance& instance, int64_t rank) {
  const Place place = place_of(instance, rank);
  RankShare share;
  for (int64_t stage = 0; stage < place.stage; ++stage) {
    share.layer_begin += instance.pipeline[static_cast<size_t>(stage)];
  }
  share.layer_end = share.layer_begin + instance.pipeline[static_cast<size_t>(place.stage)];
  share.heads = {place.attention, instance.tp};
  share.query_heads = {place.attention / instance.dcp, instance.tp / instance.dcp};
  share.tokens = {place.attention % instance.dcp, instance.dcp};
  share.experts = {place.stage_rank % instance.ep, instance.ep};
  share.vocab = {place.stage_rank % instance.vocab, instance.vocab};
  share.weights = {place.stage_rank % instance.weight_shard, instance.weight_shard};
  return share;
}

}  // namespace trireme::layout
