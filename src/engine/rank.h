// One rank of an instance: its communicators, its share of the weights, its pools, its stage. All ranks of an instance
// do the same things in the same order; what differs is the batch of their attention group.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "comm/world.h"
#include "engine/pools.h"
#include "engine/stage_pipeline.h"
#include "layout/instance.h"
#include "ledger/ledger.h"
#include "model/model.h"

namespace trireme::engine {

struct RankOptions {
  std::string isa = "auto";
  ops::Precision precision = ops::Precision::bf16;
  int threads = 1;
  int64_t tokens = 0;  // that the pages of an attention group hold, rounded up to whole pages
  int64_t slots = 1;   // KDA slots
};

class Rank {
 public:
  // `instance` is resolved and has as many ranks as `world`. Settings that must agree are compared over the world
  // first: a Failure names the first rank that has another. Then groups are made, the rank's layers opened and its
  // weights packed.
  Rank(const std::filesystem::path& model, const layout::Instance& instance, const RankOptions& options,
       comm::World& world);  // which outlives the rank
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const layout::Place& place() const { return place_; }
  const layout::Instance& instance() const { return instance_; }
  const checkpoint::ModelConfig& config() const { return model_->config(); }
  model::Model& model() { return *model_; }
  Pools& pools() { return *pools_; }
  const ledger::Account& account() const { return *account_; }
  int64_t bytes_mapped() const { return bytes_mapped_; }  // of the files: what the opened layers need
  bool last_stage() const { return place_.stage + 1 == instance_.stages(); }
  // Tokens of a sequence that one page number stands for: all ranks of a context group hold a part of the page.
  int64_t page_tokens() const { return ops::kPageTokens * instance_.dcp; }

  // Runs the batches of the attention group through the pipeline, one after the other. What it throws ends the job for
  // all ranks: the others may wait for this one, and this one's streams for them. `done` gets each one's output, where
  // it has logits on the last stage only. Every rank of the instance calls it with as many batches.
  void run(std::span<const model::Batch> batches, const std::function<void(size_t, model::ForwardOutput&)>& done);

  // What the last stage found, told to the ranks with the same number in the other stages.
  void tell_stages(std::span<std::byte> data);

  // All ranks, for results and control.
  comm::Communicator& everyone() { return *everyone_; }
  // What this rank sent, by group name; groups of one are absent.
  std::vector<std::pair<std::string, comm::Traffic>> traffic() const;

 private:
  comm::Communicator* make_group(comm::World& world, layout::Group group, const std::string& suffix = "");
  model::Parallel make_parallel(comm::World& world);

  comm::World& world_;
  layout::Instance instance_;
  layout::Place place_;
  ThreadPool threads_;
  std::unique_ptr<ops::Ops> ops_;
  std::vector<std::unique_ptr<comm::Communicator>> groups_;
  std::unique_ptr<comm::Communicator> everyone_;
  comm::Communicator* stages_ = nullptr;
  comm::Communicator* attention_ = nullptr;
  std::unique_ptr<ledger::Account> account_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Pools> pools_;
  std::unique_ptr<StagePipeline> pipeline_;
  int64_t bytes_mapped_ = 0;
};

}  // namespace trireme::engine
