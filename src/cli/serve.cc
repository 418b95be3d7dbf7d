#include "cli/serve.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/version.h"
#include "cli/deployment_flags.h"
#include "cli/engine_flags.h"
#include "comm/local.h"
#include "comm/mpi.h"
#include "engine/led_machine.h"
#include "engine/rank.h"
#include "layout/chunks.h"
#include "serve/server.h"

namespace trireme::cli {
namespace {

constexpr std::chrono::seconds kGrace{3};

// SIGINT and SIGTERM are taken with sigwait, so they are blocked before any thread is made.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Until it goes, a blocked signal ends the process as it would by itself: nothing is served yet, and loading may take
// long.
class EndsOnSignal {
 public:
  explicit EndsOnSignal(const sigset_t& signals)
      : thread_([signals](const std::stop_token& stop) {
          constexpr timespec kTurn{0, 20'000'000};
          while (!stop.stop_requested()) {
            const int number = sigtimedwait(&signals, nullptr, &kTurn);
            if (number < 0) continue;
            std::signal(number, SIG_DFL);
            pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
            std::raise(number);
          }
        }) {}

 private:
  std::jthread thread_;
};

void print_memory(const ledger::Plan& plan) {
  constexpr double kMiB = 1024.0 * 1024.0;
  for (const ledger::Line& line : plan.lines) {
    fmt::print("  {:<24} {:>10.1f} MiB  {}\n", line.name, static_cast<double>(line.bytes) / kMiB, line.formula);
  }
  fmt::print("  {:<24} {:>10.1f} MiB\n", "total", static_cast<double>(plan.total()) / kMiB);
}

void print_ready(const serve::Server& server, const serve::ServerOptions& options) {
  const std::string& host = options.http.host;
  // An address that means "all of them" is none to connect to.
  const std::string shown = host == "0.0.0.0" || host == "::"     ? "127.0.0.1"
                            : host.find(':') != std::string::npos ? "[" + host + "]"
                                                                  : host;
  const std::string url = fmt::format("http://{}:{}", shown, server.port());
  fmt::print("ready: {} serves {}\ntry:\n", url, server.model_name());
  const std::string key = options.api_key.empty() ? "" : " -H \"Authorization: Bearer $TRIREME_API_KEY\"";
  fmt::print("  curl {}/v1/chat/completions -H 'Content-Type: application/json'{} \\\n", url, key);
  fmt::print(
      "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Ben has 3 jars with 8 candles in each one. "
      "How many candles does Ben have now?\"}}], \"temperature\": 0}}'\n");
  std::fflush(stdout);
}

// Serves until a signal comes. `loading` ends the process on a signal until the model is there.
void serve_until_signal(const serve::ServerOptions& options, std::unique_ptr<engine::Machine> machine,
                        const sigset_t& signals, std::optional<EndsOnSignal>& loading) {
  serve::Server server(options, std::move(machine));
  loading.reset();
  const engine::Engine& engine = server.engine();
  fmt::print("trireme {}: {}\n", kVersion, options.engine.model.string());
  fmt::print("operations: {}, {} threads, {}\nmemory:\n", engine.isa(), engine.threads(),
             precision_name(options.engine.precision));
  print_memory(engine.account().plan());
  print_ready(server, options);
  constexpr timespec kTurn{0, 200'000'000};
  while (sigtimedwait(&signals, nullptr, &kTurn) < 0) {
    if (const std::string dead = engine.stats().dead; !dead.empty()) throw Failure(dead);
  }
  fmt::print("stopping (again to stop at once)\n");
  std::fflush(stdout);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // the second one ends the process
  server.stop(kGrace);
}

engine::RankOptions rank_options(const engine::EngineOptions& o, const layout::Instance& instance,
                                 const checkpoint::ModelConfig& config) {
  engine::RankOptions r;
  r.isa = o.isa;
  r.precision = o.precision;
  r.threads = o.threads > 0 ? o.threads : 1;  // ranks share the machine's cores
  r.slots = o.max_running;
  r.tokens = o.max_tokens > 0
                 ? o.max_tokens
                 : std::max(o.max_running * std::min<int64_t>(config.max_positions, 4096), config.max_positions);
  // A step decodes one row of each running request and takes one chunk of prompts.
  const int64_t rows = o.max_running + o.chunk_tokens;
  const auto check = [&](const char* setting, const std::optional<int64_t>& limit) {
    if (!limit || rows <= *limit * instance.tp) return;
    throw BadInput(
        fmt::format("{} = {} allows steps of {} rows a group; --max-running {} and chunks of {} tokens need {}",
                    setting, *limit, *limit * instance.tp, o.max_running, o.chunk_tokens, rows));
  };
  check("row_bound", instance.row_bound);
  check("experts.max_dispatch_tokens", instance.max_dispatch_tokens);
  return r;
}

// Every rank's program: rank 0 serves, the others follow it. own_chunk: the command line gave chunk_tokens.
void serve_on_ranks(serve::ServerOptions& options, bool own_chunk, const layout::Instance& wanted, sigset_t signals,
                    std::optional<EndsOnSignal>& loading) {
  if (options.engine.draft) throw BadInput("--draft: drafts do not run on several ranks yet; leave --deployment out");
  const checkpoint::ModelConfig config = checkpoint::read_config(options.engine.model);
  const layout::Instance instance = layout::resolve(wanted, config);
  if (!own_chunk) options.engine.chunk_tokens = instance.chunk_tokens;
  if (instance.dynamic_chunking) {
    options.engine.chunks.emplace(layout::chunk_costs(config, instance.pipeline), options.engine.chunk_tokens);
  }
  const engine::RankOptions rank_settings = rank_options(options.engine, instance, config);
  const auto body = [&](comm::World& world) {
    engine::Rank rank(options.engine.model, instance, rank_settings, world);
    if (world.rank() != 0) return engine::follow(rank);
    fmt::print("instance {}: {} ranks, {} stages, dp {}, tp {}, dcp {}, ep {}\n", instance.name, instance.ranks(),
               instance.stages(), instance.dp, instance.tp, instance.dcp, instance.ep);
    serve_until_signal(options, std::make_unique<engine::LedMachine>(rank), signals, loading);
  };
  const std::chrono::seconds kForEver{0};  // ranks wait for the next request
  if (comm::under_mpi()) {
    // SIGTERM is mpirun's word that the job has ended: every rank says so and goes. Ctrl-C stops rank 0 gracefully.
    loading.reset();
    sigdelset(&signals, SIGTERM);
    if (comm::run_mpi(false, body, kForEver) != 0) throw Failure("a rank failed");
    return;
  }
  comm::LocalOptions local;
  local.ranks_per_host = static_cast<int>(instance.ranks_per_host);
  local.patience = kForEver;
  comm::run_local(static_cast<int>(instance.ranks()), local, body);
}

// CLI11 passes over a variable that is set but empty, which would serve without asking for a key.
void check_key_variable(const std::string& key) {
  if (key.empty() && std::getenv("TRIREME_API_KEY") != nullptr)
    throw BadInput("TRIREME_API_KEY: must not be empty; unset it to ask for no key");
}

void run(serve::ServerOptions& options, bool own_chunk, const std::string& log_level,
         const std::string& deployment_name, const std::string& instance_name) {
  spdlog::set_level(spdlog::level::from_str(log_level));
  check_key_variable(options.api_key);
  std::optional<layout::Instance> instance;
  if (!deployment_name.empty()) {
    const layout::Deployment deployment = layout::read_deployment(deployment_name);
    if (options.engine.model.empty() && deployment.model) options.engine.model = *deployment.model;
    instance = choose_instance(deployment, instance_name);
  }
  resolve_model(options.engine.model);
  const sigset_t signals = block_signals();
  std::optional<EndsOnSignal> loading(signals);
  if (instance) {
    serve_on_ranks(options, own_chunk, *instance, signals, loading);
  } else {
    serve_until_signal(options, nullptr, signals, loading);
  }
}

}  // namespace

void add_serve(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("serve", "Serve the OpenAI API; with no flags, the embedded k3-nano on 127.0.0.1:8000");
  const auto options = std::make_shared<serve::ServerOptions>();
  const auto log_level = std::make_shared<std::string>("info");
  options->http.port = 8000;
  command
      ->add_option("--host", options->http.host,
                   "Address to listen on (default 127.0.0.1: this machine only; 0.0.0.0: everyone)")
      ->check(not_empty());
  command->add_option("--port", options->http.port, "Port (default 8000; 0: any free one)")
      ->check(CLI::Range(0, 65535));
  command
      ->add_option("--served-model-name", options->model_name,
                   "What clients call the model; the folder's name if absent")
      ->check(not_empty());
  command
      ->add_option("--api-key", options->api_key,
                   "Ask for this key (Authorization: Bearer KEY) on all but /health, /metrics, /version")
      ->envname("TRIREME_API_KEY")
      ->check(not_empty());
  add_engine_flags(*command, options->engine);
  command->add_option("--max-running", options->engine.max_running, "Requests that run at once (default 64)")
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--max-tokens", options->engine.max_tokens,
                   "Tokens that the MLA pages hold; 0 (default): --max-running times the context or 4096, whichever is "
                   "less, but one full context at least")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  const CLI::Option* chunk = command->add_option("--chunk-tokens", options->engine.chunk_tokens,
                                                 "Most prompt tokens in one step (default 512, or the deployment's)");
  command->get_option("--chunk-tokens")->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--max-queue", options->engine.max_queue, "Waiting requests; more are answered 429 (default 1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--log-level", *log_level, "debug, info (default), warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  const auto deployment = std::make_shared<std::string>();
  const auto instance = std::make_shared<std::string>();
  command
      ->add_option(
          "--deployment", *deployment,
          "Deployment file or built-in name: run on its ranks, as threads or under mpirun; limits count for each "
          "attention group")
      ->check(not_empty());
  command->add_option("--instance", *instance, "Which instance of the deployment")->check(not_empty());
  command->callback([=] { run(*options, chunk->count() > 0, *log_level, *deployment, *instance); });
}

}  // namespace trireme::cli
