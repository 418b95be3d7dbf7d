// What the two files of a tiktoken-format tokenizer say, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

inline constexpr int64_t kSpecialCount = 256;  // special ids behind the ranks, in every Kimi model

struct Vocabulary {
  std::vector<std::string> tokens;         // bytes by id; an empty entry is an id without a token
  std::vector<std::string> special_names;  // kSpecialCount; entry i belongs to id tokens.size() + i
};

// `ranks` is tiktoken.model: a line each of base64(bytes), a space and the rank, the ranks being 0 .. lines - 1 in any
// order. `config_json` is tokenizer_config.json, whose added_tokens_decoder names special ids; ids that it does not
// name are called
// "<|reserved_token_ID|>". If it is empty or has no such key, K3's own names are taken at K3's own offsets.
// Throws BadInput that names the file below `where`, and the line or the key.
Vocabulary parse_vocabulary(std::string_view ranks, std::string_view config_json, const std::string& where);

}  // namespace trireme::text
