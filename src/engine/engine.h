// The engine: owns model, pools and scheduler, and runs steps on a thread of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "engine/request.h"
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
  int64_t max_queue = 1024;                    // waiting requests; more are refused
  std::optional<std::filesystem::path> draft;  // a DSpark or DFlash folder
  int64_t gamma = 4;                           // drafted tokens a round
};

struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t pages_total = 0, pages_free = 0, slots_total = 0, slots_free = 0;
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, retractions = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t steps = 0;
  int64_t draft_rounds = 0, draft_emitted = 0;  // accept length = emitted / rounds
  double last_step_age_s = 0;                   // since the loop last came round; large when it hangs
};

class Engine {
 public:
  // Loads the model. Throws BadInput or Failure.
  explicit Engine(const EngineOptions& options);
  // Ends running requests with FinishReason::cancelled and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const checkpoint::ModelConfig& config() const;
  const ledger::Account& account() const;
  std::string_view isa() const;
  int threads() const;

  // Thread-safe. Throws BadInput naming the field if the request can never run (empty or too long a prompt, token out
  // of range, bad sampling value) and Failure if the queue is full. Events may come before it returns.
  RequestId submit(Request request);
  // Thread-safe, idempotent; the request's last event says cancelled unless it ended first. Its pages and slots are
  // back within a step.
  void cancel(RequestId id);
  EngineStats stats() const;
  // Blocks until nothing runs or waits.
  void wait_idle();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::engine
