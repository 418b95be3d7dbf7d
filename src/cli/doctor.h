// `trireme doctor`: what this machine can run, and what is missing.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

void add_doctor(CLI::App& app);

}  // namespace trireme::cli
