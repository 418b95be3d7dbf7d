// The command line: one file a command in cli/.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "base/error.h"
#include "base/version.h"
#include "cli/bench.h"
#include "cli/convert.h"
#include "cli/doctor.h"
#include "cli/eval.h"
#include "cli/generate.h"
#include "cli/inspect.h"
#include "cli/logits.h"
#include "cli/serve.h"

namespace {

// Exit status: 0 done, 1 failure, 2 bad input.
int run(int argc, char** argv) {
  CLI::App app{"Trireme serves Kimi K3-family models.", "trireme"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(trireme::kVersion));
  trireme::cli::add_serve(app);
  trireme::cli::add_generate(app);
  trireme::cli::add_logits(app);
  trireme::cli::add_eval(app);
  trireme::cli::add_bench(app);
  trireme::cli::add_inspect(app);
  trireme::cli::add_convert(app);
  trireme::cli::add_doctor(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "trireme: %s; see trireme --help\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("trireme"));  // standard output is for answers
  try {
    return run(argc, argv);
  } catch (const trireme::BadInput& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "trireme: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  }
}
