// `trireme serve`: an OpenAI-style API in this process.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

void add_serve(CLI::App& app);

}  // namespace trireme::cli
