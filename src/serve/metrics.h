// What the server counts and times, written in Prometheus' text form under the names of vLLM and SGLang, so that their
// dashboards and routers work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace trireme::serve {

// Why a request ended, for vllm:request_success_total{finished_reason}.
enum class Ending : uint8_t { stop, length, abort, error };

// Thread-safe. Times are in seconds.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void first_token(double seconds_since_arrival);
  // `tokens` came together `seconds` after those before them.
  void more_tokens(double seconds, int64_t tokens);
  void ended(Ending ending, double seconds_since_arrival, int64_t prompt_tokens, int64_t generated_tokens);

  // The page for GET /metrics; gauges are taken from `stats` and are there even when nothing ever ran.
  std::string render(const engine::EngineStats& stats) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::serve
