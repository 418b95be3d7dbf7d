// tiktoken-format byte-pair encoding with K3's pre-tokenisation pattern, and the 256 special tokens behind the ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/vocabulary.h"

namespace trireme::text {

// Ids of the special tokens that the engine itself uses, found by name; -1 if the vocabulary has none of that name.
struct SpecialTokens {
  TokenId bos = -1, eos = -1, end_of_msg = -1, open = -1, close = -1, sep = -1, pad = -1;
};

// Immutable after construction: one object may be used from many threads.
class Tokenizer {
 public:
  // Reads dir/tiktoken.model and, if there, dir/tokenizer_config.json. Throws BadInput naming file and line.
  static Tokenizer load(const std::filesystem::path& dir);
  // From the contents of the two files (config may be empty).
  static Tokenizer parse(std::string_view ranks, std::string_view config_json, const std::string& where);
  // From a vocabulary at hand, which unlike a file may have ids without a token. Throws BadInput if two tokens have the
  // same bytes, a single byte is missing or special_names does not have kSpecialCount entries.
  explicit Tokenizer(Vocabulary vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ordinary text: special tokens in it are NOT recognised. `text` must be valid UTF-8; throws BadInput with the byte
  // offset otherwise. Texts beyond 400,000 characters, and runs beyond 25,000, are cut as K3 cuts them (see
  // text/split.h).
  std::vector<TokenId> encode(std::string_view text) const;
  // The bytes of a token: of an ordinary token its bytes, of a special token its name. Empty for an id outside the
  // vocabulary.
  std::string_view token_bytes(TokenId id) const;
  // All bytes joined; special tokens are left out if skip_special. May be invalid UTF-8 (see Utf8Stream).
  std::string decode(const std::vector<TokenId>& ids, bool skip_special) const;
  bool is_special(TokenId id) const;
  std::optional<TokenId> special_id(std::string_view name) const;
  const SpecialTokens& special() const;
  int64_t vocab_size() const;  // ranks + kSpecialCount

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::text
