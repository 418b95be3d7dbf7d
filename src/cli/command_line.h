// The command line as a whole: one file a command beside this one.
#pragma once

namespace trireme::cli {

// Runs the command that argv names. What goes wrong is one line on standard error. Returns the exit status: 0 done, 1
// failure (one of them: standard output could not be written), 2 bad input.
int run_command_line(int argc, const char* const* argv);

}  // namespace trireme::cli
