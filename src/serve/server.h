// An engine with its HTTP front: what `trireme serve` runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/machine.h"
#include "serve/http_server.h"

namespace trireme::serve {

struct ServerOptions {
  engine::EngineOptions engine;
  HttpOptions http;
  std::string model_name;  // empty: the name of the model's folder
  std::string api_key;     // empty: none is asked for
};

class Server {
 public:
  // Takes the port, loads the model, then listens. With `machine` the engine runs on that instead of loading a model of
  // its own. Throws BadInput or Failure.
  explicit Server(const ServerOptions& options, std::unique_ptr<engine::Machine> machine = nullptr);
  // Stops without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  const std::string& model_name() const;
  const engine::Engine& engine() const;

  // Takes no new requests, gives those that run `grace` to end, cancels the rest (their answers end with an error) and
  // closes. Idempotent.
  void stop(std::chrono::milliseconds grace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::serve
