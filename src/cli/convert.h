// trireme convert: a block-FP8 checkpoint from a BF16 one.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

// Adds the subcommand to `app`; its callback converts, prints a report, and throws what convert_to_fp8 throws.
void add_convert(CLI::App& app);

}  // namespace trireme::cli
