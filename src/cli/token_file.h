// Prompts as token ids from a file, for `trireme logits`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

namespace trireme::cli {

struct TokenFile {
  std::map<int64_t, std::vector<int32_t>> prompts;  // by number
  std::vector<int32_t> state_layers;                // a golden file's trace.kda_state_layers; empty: not given
};

// A safetensors file with tensors `prompt.<i>.tokens` (I32 or I64, one dimension), or a JSON list of lists of ids.
// Throws BadInput naming the file and the prompt: unreadable, no prompts, an empty prompt, a prompt number that is not
// written in its plain form ("00"), a wrong dtype or shape, an id outside [0, vocabulary).
TokenFile read_token_file(const std::filesystem::path& path, int64_t vocabulary);

}  // namespace trireme::cli
