// What the engine's loop runs its steps on: one rank with the whole model, or an instance of many ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/id_pool.h"
#include "checkpoint/checkpoint.h"
#include "engine/executor.h"
#include "engine/scheduler.h"
#include "ledger/ledger.h"

namespace trireme::engine {

// What one attention group runs in a step. `sequences[i]` is the request of entry i.
struct GroupStep {
  StepPlan plan;
  std::vector<const Sequence*> sequences;
};

class Machine {
 public:
  Machine() = default;
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  virtual const checkpoint::ModelConfig& config() const = 0;
  virtual const ledger::Account& account() const = 0;  // of this process's rank
  virtual std::string_view isa() const = 0;
  virtual int threads() const = 0;

  // Attention groups: each has requests, pages and slots of its own.
  virtual int64_t groups() const = 0;
  virtual cache::IdPool& pages(int64_t group) = 0;
  virtual cache::IdPool& slots(int64_t group) = 0;
  virtual int64_t page_tokens() const = 0;  // tokens of a request that one page stands for

  // One step of all groups (plans may be empty, not all of them); an output a group. Throws when the step failed: the
  // state of its requests is undefined then.
  virtual std::vector<StepOutput> run(std::span<const GroupStep> steps) = 0;
  // After a failed step: no other can follow.
  virtual bool lost() const { return false; }
};

}  // namespace trireme::engine
