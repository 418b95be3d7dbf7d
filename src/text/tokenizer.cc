#include "text/tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "text/split.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;  // K3's own ranks have 3 MB

}  // namespace

struct Tokenizer::State {
  explicit State(Vocabulary given) : vocabulary(std::move(given)), ranks(vocabulary.tokens, "ranks") {
    if (static_cast<int64_t>(vocabulary.special_names.size()) != kSpecialCount) {
      throw BadInput(
          fmt::format("vocabulary: {} special names instead of {}", vocabulary.special_names.size(), kSpecialCount));
    }
    first_special = static_cast<TokenId>(vocabulary.tokens.size());
    for (size_t i = 0; i < vocabulary.special_names.size(); ++i) {
      special_ids.emplace(vocabulary.special_names[i], first_special + static_cast<TokenId>(i));
    }
    special = {id_of("[BOS]"),     id_of("[EOS]"),   id_of("<|end_of_msg|>"), id_of("<|open|>"),
               id_of("<|close|>"), id_of("<|sep|>"), id_of("[PAD]")};
  }

  TokenId id_of(std::string_view name) const {
    const auto it = special_ids.find(name);
    return it == special_ids.end() ? -1 : it->second;
  }

  Vocabulary vocabulary;
  RankTable ranks;
  TokenId first_special = 0;
  std::unordered_map<std::string_view, TokenId> special_ids;
  SpecialTokens special;
  Splitter splitter;
};

Tokenizer Tokenizer::load(const std::filesystem::path& dir) {
  const std::filesystem::path ranks = dir / "tiktoken.model";
  const std::filesystem::path config = dir / "tokenizer_config.json";
  if (!has_entry(ranks))
    throw BadInput(
        fmt::format("{}: there is no such file; a model's folder needs its tokenizer there", ranks.string()));
  std::string config_json;
  if (has_entry(config)) {
    config_json = read_text_file(config, kMaxFileBytes);
    if (config_json.empty()) throw BadInput(fmt::format("{}: it is empty; it must be a JSON object", config.string()));
  }
  return parse(read_text_file(ranks, kMaxFileBytes), config_json, dir.string());
}

Tokenizer Tokenizer::parse(std::string_view ranks, std::string_view config_json, const std::string& where) {
  Vocabulary vocabulary = parse_vocabulary(ranks, config_json, where);
  try {
    return Tokenizer(std::move(vocabulary));
  } catch (const BadInput& error) {
    throw BadInput(fmt::format("{}/tiktoken.model: {}", where, error.what()));
  }
}

Tokenizer::Tokenizer(Vocabulary vocabulary) : state_(std::make_unique<State>(std::move(vocabulary))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  if (const auto offset = first_invalid_byte(text))
    throw BadInput(fmt::format("text is not valid UTF-8 at byte {}", *offset));
  std::vector<TokenId> ids;
  std::vector<std::string_view> pieces;
  for (const std::string_view slice : cut_long_text(text)) {
    pieces.clear();
    state_->splitter.split(slice, pieces);
    for (const std::string_view piece : pieces) encode_piece(state_->ranks, piece, ids);
  }
  return ids;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  if (is_special(id)) return state_->vocabulary.special_names[static_cast<size_t>(id - state_->first_special)];
  return state_->vocabulary.tokens[static_cast<size_t>(id)];
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return bytes;
}

bool Tokenizer::is_special(TokenId id) const { return id >= state_->first_special && id < vocab_size(); }

std::optional<TokenId> Tokenizer::special_id(std::string_view name) const {
  const TokenId id = state_->id_of(name);
  return id < 0 ? std::nullopt : std::optional<TokenId>(id);
}

const SpecialTokens& Tokenizer::special() const { return state_->special; }

int64_t Tokenizer::vocab_size() const { return state_->first_special + kSpecialCount; }

}  // namespace trireme::text
