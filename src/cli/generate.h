// `trireme generate`: one answer on the terminal, as it comes.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

void add_generate(CLI::App& app);

}  // namespace trireme::cli
