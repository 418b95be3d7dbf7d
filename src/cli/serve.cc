#include "cli/serve.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/version.h"
#include "cli/engine_flags.h"
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

void run(serve::ServerOptions& options, const std::string& log_level) {
  spdlog::set_level(spdlog::level::from_str(log_level));
  resolve_model(options.engine.model);
  const sigset_t signals = block_signals();
  serve::Server server(options);
  const engine::Engine& engine = server.engine();
  fmt::print("trireme {}: {}\n", kVersion, options.engine.model.string());
  fmt::print("operations: {}, {} threads, {}\nmemory:\n", engine.isa(), engine.threads(),
             precision_name(options.engine.precision));
  print_memory(engine.account().plan());
  print_ready(server, options);
  int number = 0;
  sigwait(&signals, &number);
  fmt::print("stopping (again to stop at once)\n");
  std::fflush(stdout);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // the second one ends the process
  server.stop(kGrace);
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
                   "Tokens that the cache holds; 0 (default): as --max-running needs")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command->add_option("--chunk-tokens", options->engine.chunk_tokens, "Most prompt tokens in one step (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--max-queue", options->engine.max_queue, "Waiting requests; more are answered 429 (default 1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--log-level", *log_level, "debug, info (default), warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  command->callback([options, log_level] { run(*options, *log_level); });
}

}  // namespace trireme::cli
