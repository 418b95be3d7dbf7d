#include "serve/server.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "serve/api.h"
#include "serve/generation.h"
#include "serve/metrics.h"
#include "serve/workers.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace trireme::serve {
namespace {

constexpr int kWorkerThreads = 2;
constexpr std::chrono::milliseconds kCancelGrace{2'000};

// What clients call the model. It stands in every answer, so it must be text.
std::string served_name(const ServerOptions& options) {
  const std::string name = options.model_name.empty()
                               ? std::filesystem::weakly_canonical(options.engine.model).filename().string()
                               : options.model_name;
  const auto offset = text::first_invalid_byte(name);
  if (!offset) return name;
  throw BadInput(options.model_name.empty()
                     ? "the name of the model's folder is not valid UTF-8; give --served-model-name"
                     : fmt::format("--served-model-name: not valid UTF-8 at byte {}", *offset));
}

}  // namespace

// Whatever may be refused at once (the port, the tokenizer, the defaults) comes before the engine, which loads the
// model. Destroyed from the end: the engine's events may still reach the workers, whose tasks may still reach the
// engine; stop() ends the workers while both are there.
struct Server::State {
  State(const ServerOptions& options, std::unique_ptr<engine::Machine> machine)
      : http(options.http),
        name(served_name(options)),
        tokenizer(text::Tokenizer::load(options.engine.model)),
        defaults(read_sampling_defaults(options.engine.model)),
        metrics(name),
        workers(kWorkerThreads),
        engine(machine ? engine::Engine(options.engine, std::move(machine)) : engine::Engine(options.engine)),
        api({name, options.api_key, defaults, engine.stats().slots_total + options.engine.max_queue},
            {engine, tokenizer, metrics, workers, live}) {
    http.start(api);
  }
  HttpServer http;
  const std::string name;
  const text::Tokenizer tokenizer;
  const SamplingDefaults defaults;
  Metrics metrics;
  Workers workers;
  LiveGenerations live;
  engine::Engine engine;
  Api api;
};

Server::Server(const ServerOptions& options, std::unique_ptr<engine::Machine> machine)
    : state_(std::make_unique<State>(options, std::move(machine))) {}

Server::~Server() { stop(std::chrono::milliseconds(0)); }

uint16_t Server::port() const { return state_->http.port(); }
const std::string& Server::model_name() const { return state_->name; }
const engine::Engine& Server::engine() const { return state_->engine; }

void Server::stop(std::chrono::milliseconds grace) {
  if (!state_->http.drain(grace)) {
    for (const auto& generation : state_->live.all()) generation->cancel();
    state_->http.drain(kCancelGrace);
  }
  state_->http.stop();
  state_->workers.stop();
}

}  // namespace trireme::serve
