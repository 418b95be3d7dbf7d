// `trireme bench`: measurements. Here: `bench latency`.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

// Adds the subcommand; its callback throws BadInput or Failure.
void add_bench(CLI::App& app);

}  // namespace trireme::cli
