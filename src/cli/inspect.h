// trireme inspect: what a checkpoint holds.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

// Adds the subcommand to `app`; its callback prints and throws what Checkpoint::open throws.
void add_inspect(CLI::App& app);

}  // namespace trireme::cli
