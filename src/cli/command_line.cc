#include "cli/command_line.h"

#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
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

namespace trireme::cli {
namespace {

// A standard descriptor that the caller closed would go to the next file or socket, and messages into that. Standard
// output gets one that cannot be written, so that what is lost is noticed.
void hold_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    (void)::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int complain(int status, const std::string& message) {
  std::fprintf(stderr, "trireme: %s\n", message.c_str());
  return status;
}

// What CLI11 says, but of an argument that is wrong and one that is missing it names the wrong one.
std::string parse_message(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = error.what();
  const std::vector<std::string> unknown = app.remaining(true);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !unknown.empty()) {
    message = "The following argument was not expected: " + unknown.front();
  }
  return message + "; see trireme --help";
}

int run(int argc, const char* const* argv) {
  CLI::App app{"Trireme serves Kimi K3-family models.", "trireme"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(kVersion));
  add_serve(app);
  add_generate(app);
  add_logits(app);
  add_eval(app);
  add_bench(app);
  add_inspect(app);
  add_convert(app);
  add_doctor(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return complain(2, parse_message(app, error));
    app.exit(error);  // --help, --version
    std::cout.flush();
    if (!std::cout) throw Failure("standard output cannot be written");
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw Failure("standard output cannot be written");
  return 0;
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  hold_standard_descriptors();
  spdlog::set_default_logger(spdlog::stderr_color_mt("trireme"));  // standard output is for answers
  try {
    return run(argc, argv);
  } catch (const BadInput& error) {
    return complain(2, error.what());
  } catch (const std::bad_alloc&) {
    return complain(1, "out of memory");
  } catch (const std::exception& error) {
    return complain(1, error.what());
  }
}

}  // namespace trireme::cli
