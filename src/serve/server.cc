#include "serve/server.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "serve/api.h"
#include "serve/generation.h"
#include "serve/metrics.h"
#include "serve/workers.h"
#include "text/tokenizer.h"

namespace trireme::serve {
namespace {

constexpr int kWorkerThreads = 2;
constexpr std::chrono::milliseconds kCancelGrace{2'000};

std::string folder_name(const std::filesystem::path& model) {
  const std::filesystem::path path = std::filesystem::weakly_canonical(model);
  return path.filename().string();
}

// The HTTP server is made before the model is loaded, so that a port in use is told at once; it answers through this.
class LateHandler : public Handler {
 public:
  void set(Handler& handler) { handler_ = &handler; }
  std::optional<HttpResponse> screen(const HttpRequest& request) override { return handler_->screen(request); }
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    handler_->handle(std::move(request), std::move(exchange));
  }
  HttpResponse protocol_error(int status, const std::string& message) override {
    return handler_->protocol_error(status, message);
  }

 private:
  Handler* handler_ = nullptr;  // set before the server listens
};

}  // namespace

// Destroyed from the end: the engine's events may still reach the workers, whose tasks may still reach the engine;
// stop() ends the workers while both are there.
struct Server::State {
  explicit State(const ServerOptions& options)
      : http(options.http, handler),
        name(options.model_name.empty() ? folder_name(options.engine.model) : options.model_name),
        tokenizer(text::Tokenizer::load(options.engine.model)),
        metrics(name),
        workers(kWorkerThreads),
        engine(options.engine),
        api({name, options.api_key, read_sampling_defaults(options.engine.model)},
            {engine, tokenizer, metrics, workers, live}) {
    handler.set(api);
    http.start();
  }
  LateHandler handler;
  HttpServer http;
  const std::string name;
  const text::Tokenizer tokenizer;
  Metrics metrics;
  Workers workers;
  LiveGenerations live;
  engine::Engine engine;
  Api api;
};

Server::Server(const ServerOptions& options) : state_(std::make_unique<State>(options)) {}

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
