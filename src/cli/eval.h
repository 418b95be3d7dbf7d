// `trireme eval`: exact-match accuracy, accept length and throughput on a set of questions.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

// Adds the subcommand; its callback throws BadInput or Failure.
void add_eval(CLI::App& app);

}  // namespace trireme::cli
