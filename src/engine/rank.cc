#include "engine/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ops/select.h"

namespace trireme::engine {
namespace {

// Everything that all ranks must have alike, as text, so that a difference can be shown.
std::string settings_text(const layout::Instance& i, const RankOptions& o, const checkpoint::ModelConfig& c) {
  std::string text = fmt::format(
      "dp {} tp {} dcp {} ep {} vocab {} weight_shard {} move_smaller {} row_bound {} max_dispatch_tokens {} "
      "ranks_per_host {} async_depth {} chunk_tokens {} dynamic_chunking {} eager_bank {} {} isa {} precision {} "
      "tokens {} "
      "slots {} layers {} hidden {} vocabulary {} experts {} top_k {} residual_block {} pipeline",
      i.dp, i.tp, i.dcp, i.ep, i.vocab, i.weight_shard, i.move_smaller, i.row_bound.value_or(0),
      i.max_dispatch_tokens.value_or(0), i.ranks_per_host, i.async_depth, i.chunk_tokens, i.dynamic_chunking,
      i.eager_bank.enabled, i.eager_bank.prefetch, o.isa, o.precision == ops::Precision::bf16 ? "bf16" : "f32",
      o.tokens, o.slots, c.layers, c.hidden, c.vocab, c.moe.experts, c.moe.top_k, c.residual_block.value_or(0));
  for (const int64_t n : i.pipeline) text += fmt::format(" {}", n);
  text += " eager stages";
  for (const int64_t s : i.eager_bank.stages) text += fmt::format(" {}", s);
  return text;
}

// Throws a Failure on every rank if one has other settings than rank 0.
void compare_settings(comm::Communicator& everyone, const std::string& mine) {
  constexpr size_t kLimit = 4096;
  std::string padded = mine.substr(0, kLimit);
  padded.resize(kLimit, ' ');
  std::vector<char> all(kLimit * static_cast<size_t>(everyone.size()));
  everyone.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  const std::string_view first(all.data(), kLimit);
  for (int r = 1; r < everyone.size(); ++r) {
    const std::string_view other(all.data() + static_cast<size_t>(r) * kLimit, kLimit);
    if (other == first) continue;
    const auto trimmed = [](std::string_view text) { return text.substr(0, text.find_last_not_of(' ') + 1); };
    throw Failure(fmt::format("settings differ between ranks: rank 0 has \"{}\", rank {} has \"{}\"", trimmed(first), r,
                              trimmed(other)));
  }
}

std::vector<int64_t> bank_rows_written(const layout::Instance& instance, const checkpoint::ModelConfig& config) {
  std::vector<int64_t> written;
  int64_t layer = 0;
  for (const int64_t layers : instance.pipeline) {
    int64_t rows = 0;
    for (const int64_t end = layer + layers; layer < end; ++layer) {
      if (config.residual_block && layer % *config.residual_block == 0) ++rows;
    }
    written.push_back(rows);
  }
  return written;
}

uint64_t digest_of(const model::Batch& batch) {
  std::vector<int64_t> fields;
  for (const model::Segment& s : batch.segments) fields.insert(fields.end(), {s.rows, s.position, s.slot});
  return batch_digest(fields);
}

}  // namespace

comm::Communicator* Rank::make_group(comm::World& world, layout::Group group, const std::string& suffix) {
  const std::vector<int> ranks = layout::members(instance_, group, place_.rank);
  if (ranks.size() == 1) return nullptr;
  groups_.push_back(world.group(std::string(layout::group_name(group)) + suffix, ranks));
  return groups_.back().get();
}

model::Parallel Rank::make_parallel(comm::World& world) {
  using layout::Group;
  model::Parallel p;
  p.share = layout::share_of(instance_, place_.rank);
  p.stage = make_group(world, Group::stage);
  p.attention = make_group(world, Group::attention);
  p.context = make_group(world, Group::context);
  p.experts = make_group(world, Group::experts);
  if (p.experts != nullptr) p.combine = make_group(world, Group::experts, " combine");
  p.vocab = make_group(world, Group::vocab);
  p.weights = make_group(world, Group::weights);
  if (p.weights != nullptr) p.gather = make_group(world, Group::weights, " gather");
  p.several_batches = instance_.dp > 1;
  p.move_smaller = instance_.move_smaller;
  p.row_bound = instance_.row_bound;
  p.max_dispatch = instance_.max_dispatch_tokens;
  return p;
}

Rank::Rank(const std::filesystem::path& model, const layout::Instance& instance, const RankOptions& options,
           comm::World& world)
    : world_(world), instance_(instance), place_(layout::place_of(instance, world.rank())), threads_(options.threads) {
  if (world.size() != instance.ranks()) {
    throw BadInput(
        fmt::format("instance {} has {} ranks, {} were started", instance.name, instance.ranks(), world.size()));
  }
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  everyone_ = world.group("world", all);
  const layout::RankShare share = layout::share_of(instance_, place_.rank);
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(model, share.layer_begin, share.layer_end);
  bytes_mapped_ = checkpoint.bytes_mapped();
  compare_settings(*everyone_, settings_text(instance_, options, checkpoint.config()));
  model::Parallel parallel = make_parallel(world);
  attention_ = parallel.attention;
  stages_ = make_group(world, layout::Group::pipeline);
  comm::Communicator* bank = stages_ == nullptr ? nullptr : make_group(world, layout::Group::pipeline, " bank");

  ops_ = ops::make_ops(options.isa, options.precision, threads_);
  const ledger::PoolSizes sizes{(options.tokens + page_tokens() - 1) / page_tokens(), options.slots};
  account_ = std::make_unique<ledger::Account>(ledger::plan_memory(checkpoint, *ops_, sizes, share));
  model_ = std::make_unique<model::Model>(checkpoint, *ops_, *account_, parallel);
  pools_ =
      std::make_unique<Pools>(ledger::pool_config(checkpoint.config(), share), options.precision, sizes, *account_);
  const StageConfig stage = stage_config(bank_rows_written(instance_, checkpoint.config()), instance_.eager_bank,
                                         instance_.async_depth, place_.stage);
  pipeline_ = std::make_unique<StagePipeline>(stage, checkpoint.config().hidden, model::wire_of(*ops_), stages_, bank);
}

Rank::~Rank() = default;

void Rank::run(std::span<const model::Batch> batches, const std::function<void(size_t, model::ForwardOutput&)>& done) {
  std::vector<MicroBatch> micro_batches;
  for (const model::Batch& batch : batches) {
    const int64_t block = (batch.rows() + instance_.tp - 1) / instance_.tp;
    const int64_t begin = std::min(place_.attention * block, batch.rows());
    micro_batches.push_back({std::min(block, batch.rows() - begin), digest_of(batch)});
  }
  try {
    if (attention_ != nullptr) {
      for (const MicroBatch& m : micro_batches) attention_->agree("batch", m.digest);
    }
    pipeline_->run(micro_batches, [&](size_t i, const model::StageStream* before) {
      model::ForwardOutput output = model_->forward(batches[i], pools_->views(), nullptr, before);
      done(i, output);
      return output;
    });
  } catch (const std::exception& e) {
    world_.abort(e.what());
    throw;
  }
}

void Rank::tell_stages(std::span<std::byte> data) {
  if (stages_ != nullptr) stages_->broadcast(data, stages_->size() - 1);
}

std::vector<std::pair<std::string, comm::Traffic>> Rank::traffic() const {
  std::vector<std::pair<std::string, comm::Traffic>> list;
  for (const auto& group : groups_) list.emplace_back(group->name(), group->traffic());
  return list;
}

}  // namespace trireme::engine
