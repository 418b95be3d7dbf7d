#include "text/vocabulary.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

constexpr std::pair<int64_t, std::string_view> kDefaultNames[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|end_of_msg|>"},
    {3, "<|open|>"},
    {4, "<|close|>"},
    {5, "<|sep|>"},
    {6, "[start_header_id]"},
    {7, "[end_header_id]"},
    {9, "[EOT]"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {21, "<|media_pad|>"},
    {65, "<osagent_mode>"},
    {254, "[UNK]"},
    {255, "[PAD]"},
};

std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < alphabet.size(); ++i) values[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
  return values;
}

// Strict: groups of four, padding only at the end, unused bits zero.
std::optional<std::string> decode_base64(std::string_view text) {
  static const std::array<int8_t, 256> values = base64_values();
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int8_t value = values[static_cast<uint8_t>(c)];
    if (value < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<char>(static_cast<uint8_t>(bits >> held)));
      bits &= (1U << held) - 1;
    }
  }
  if (bits != 0) return std::nullopt;
  return bytes;
}

template <typename Int>
std::optional<Int> decimal(std::string_view text) {
  Int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || text[0] == '-') return std::nullopt;
  return value;
}

std::vector<std::string> parse_ranks(std::string_view ranks, const std::string& file) {
  std::vector<std::pair<std::string, int64_t>> entries;
  int64_t line_number = 0;
  while (!ranks.empty()) {
    ++line_number;
    const size_t end = ranks.find('\n');
    const std::string_view line = ranks.substr(0, end);
    ranks.remove_prefix(end == std::string_view::npos ? ranks.size() : end + 1);
    const auto fail = [&](const std::string& what) {
      throw BadInput(fmt::format("{}, line {}: {}", file, line_number, what));
    };
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) fail("expected base64, one space and a rank");
    std::optional<std::string> bytes = decode_base64(line.substr(0, space));
    if (!bytes) fail("the first field is not base64");
    const std::optional<int32_t> rank = decimal<int32_t>(line.substr(space + 1));
    if (!rank) fail("the second field is not a rank (a whole number from 0)");
    entries.emplace_back(std::move(*bytes), *rank);
  }
  const auto count = static_cast<int64_t>(entries.size());
  if (count < 256) throw BadInput(fmt::format("{}: {} tokens, but the 256 single bytes alone need 256", file, count));
  std::vector<std::string> tokens(entries.size());
  for (int64_t i = 0; i < count; ++i) {
    auto& [bytes, rank] = entries[static_cast<size_t>(i)];
    if (rank >= count) {
      throw BadInput(fmt::format("{}, line {}: rank {} in a file of {} lines; ranks must be 0..{}", file, i + 1, rank,
                                 count, count - 1));
    }
    std::string& slot = tokens[static_cast<size_t>(rank)];
    if (!slot.empty()) throw BadInput(fmt::format("{}, line {}: rank {} appears a second time", file, i + 1, rank));
    slot = std::move(bytes);
  }
  return tokens;
}

std::vector<std::string> reserved_names(int64_t first) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < kSpecialCount; ++i) names.push_back(fmt::format("<|reserved_token_{}|>", first + i));
  return names;
}

std::vector<std::string> default_names(int64_t first) {
  std::vector<std::string> names = reserved_names(first);
  for (const auto& [offset, name] : kDefaultNames) names[static_cast<size_t>(offset)] = name;
  return names;
}

std::vector<std::string> configured_names(const nlohmann::ordered_json& added, int64_t first, const std::string& file) {
  std::vector<std::string> names = reserved_names(first);
  for (const auto& [key, value] : added.items()) {
    const std::string where = fmt::format("{}: added_tokens_decoder[\"{}\"]", file, key);
    const std::optional<int64_t> id = decimal<int64_t>(key);
    if (!id || *id < first || *id >= first + kSpecialCount) {
      throw BadInput(fmt::format("{}: not one of the {} special ids {}..{} behind the {} ranks", where, kSpecialCount,
                                 first, first + kSpecialCount - 1, first));
    }
    if (!value.is_object() || !value.contains("content") || !value["content"].is_string() ||
        value["content"].get_ref<const std::string&>().empty()) {
      throw BadInput(where + ": must be an object whose \"content\" is a non-empty string");
    }
    names[static_cast<size_t>(*id - first)] = value["content"].get<std::string>();
  }
  std::unordered_set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) throw BadInput(fmt::format("{}: two special ids are called \"{}\"", file, name));
  }
  return names;
}

}  // namespace

Vocabulary parse_vocabulary(std::string_view ranks, std::string_view config_json, const std::string& where) {
  Vocabulary vocabulary;
  vocabulary.tokens = parse_ranks(ranks, where + "/tiktoken.model");
  const auto first = static_cast<int64_t>(vocabulary.tokens.size());
  const std::string file = where + "/tokenizer_config.json";
  if (!config_json.empty()) {
    const nlohmann::ordered_json config = parse_json(config_json, file);
    if (!config.is_object()) throw BadInput(file + ": must be a JSON object");
    if (config.contains("added_tokens_decoder")) {
      const auto& added = config["added_tokens_decoder"];
      if (!added.is_object()) throw BadInput(file + ": added_tokens_decoder must be an object of id to token");
      vocabulary.special_names = configured_names(added, first, file);
      return vocabulary;
    }
  }
  vocabulary.special_names = default_names(first);
  return vocabulary;
}

}  // namespace trireme::text
