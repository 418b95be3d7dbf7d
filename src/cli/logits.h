// `trireme logits`: the numbers of the model at every position, for comparison with other implementations.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::cli {

// Reads prompts (cli/token_file.h) and writes a safetensors file with, for each prompt i:
//   prompt.i.logits [T, V] F32 after each position;
//   with --greedy N: prompt.i.greedy_tokens [N] I32, decoded step by step, and prompt.i.greedy_logits [N, V], whose row
//   j chose token j;
// and with --trace I the inside of the pass over prompt I: trace.prompt [1] and the trace.* tensors that model/trace.h
// collects.
void add_logits(CLI::App& app);

}  // namespace trireme::cli
