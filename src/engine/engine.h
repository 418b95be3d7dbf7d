// The engine: owns model, pools and scheduler, and runs steps on a thread of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/config.h"
#include "engine/request.h"
#include "layout/chunks.h"
#include "ledger/ledger.h"
#include "ops/ops.h"

namespace trireme::engine {

struct EngineOptions {
  std::filesystem::path model;
  ops::Precision precision = ops::Precision::bf16;
  std::string isa = "auto";
  int threads = 0;           // 0: one a core
  int64_t max_running = 64;  // requests that hold a KDA slot at once
  int64_t max_tokens =
      0;  // tokens that the MLA pages hold; 0: max_running * min(context, 4096), at least one full context
  int64_t chunk_tokens = 512;                  // most prompt tokens in one step
  std::optional<layout::ChunkSizer> chunks;    // how many of them behind a long prefix; absent: always as many
  int64_t max_queue = 1024;                    // waiting requests; more are refused
  std::optional<std::filesystem::path> draft;  // a DSpark or DFlash folder
  int64_t gamma = 4;                           // drafted tokens a round
};

// What submit() throws when no more requests may wait: the same request may be taken later.
class QueueFull : public Failure {
 public:
  using Failure::Failure;
};

struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t pages_total = 0, pages_free = 0, slots_total = 0, slots_free = 0;  // of all attention groups
  int64_t page_tokens = 0;     // tokens of a request that one page stands for
  int64_t request_tokens = 0;  // most tokens of one request: its context, or the pages of a group
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, retractions = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t steps = 0;
  int64_t draft_rounds = 0, draft_emitted = 0;  // accept length = emitted / rounds
  double last_round_age_s = 0;                  // since the loop last came round; large when it hangs
  std::string dead;                             // why the engine takes no requests any more; empty while it does
};

struct Sequence;  // engine/scheduler.h
class Machine;    // engine/machine.h

class Engine {
 public:
  // Called on the engine's thread before every step with the requests in it; what it throws, the step has thrown.
  using Probe = std::function<void(std::span<const Sequence* const> sequences)>;

  // Loads the model. Throws BadInput or Failure, for options that cannot be and for memory that the machine does not
  // have before any weight is read. Only tests of what never happens by itself need a probe.
  explicit Engine(const EngineOptions& options, Probe probe = nullptr);
  // Runs on a machine that was made elsewhere; of the options only chunk_tokens and max_queue count.
  Engine(const EngineOptions& options, std::unique_ptr<Machine> machine);
  // Ends running requests with FinishReason::cancelled and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const checkpoint::ModelConfig& config() const;
  const ledger::Account& account() const;
  std::string_view isa() const;
  int threads() const;

  // Thread-safe. Throws BadInput naming the field if the request can never run (empty or too long a prompt, token out
  // of range, bad sampling value), QueueFull, and Failure if the engine is dead. Events may come before it returns.
  RequestId submit(Request request);
  // Thread-safe, idempotent; the request's last event says cancelled unless it ended first. Its pages and slots are
  // back within a step.
  void cancel(RequestId id);
  EngineStats stats() const;
  // Blocks until nothing runs or waits.
  void wait_idle();

 private:
  struct State;
  void start(const EngineOptions& options, std::unique_ptr<Machine> machine, Probe probe);
  std::unique_ptr<State> state_;
};

}  // namespace trireme::engine
