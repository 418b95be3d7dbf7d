// Small tokenizers and readers that the text tests share.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "text/chat.h"
#include "text/json_text.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace trireme::text::test {

inline std::string source_path(const std::string& below) { return std::string(TRIREME_SOURCE_DIR) + "/" + below; }

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<nlohmann::ordered_json> read_json_lines(const std::string& path) {
  std::vector<nlohmann::ordered_json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::ordered_json::parse(line));
  return rows;
}

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) group = (group << 8) | (j < n ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j) out += j <= n ? alphabet[(group >> (18 - 6 * j)) & 63] : '=';
  }
  return out;
}

inline std::string unbase64(std::string_view text) {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = (bits << 6) | static_cast<uint32_t>(alphabet.find(c));
    held += 6;
    if (held >= 8) out.push_back(static_cast<char>(static_cast<uint8_t>(bits >> (held -= 8))));
  }
  return out;
}

// The single bytes in K3's order: printable ones first.
inline std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  const auto printable = [](int b) { return (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174; };
  for (const bool first : {true, false}) {
    for (int b = 0; b < 256; ++b) {
      if (printable(b) == first) tokens.emplace_back(1, static_cast<char>(static_cast<uint8_t>(b)));
    }
  }
  return tokens;
}

inline std::string rank_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) file += base64(tokens[i]) + " " + std::to_string(i) + "\n";
  return file;
}

// The 256 bytes and `merges`; K3's special names.
inline Tokenizer byte_tokenizer(const std::vector<std::string>& merges = {}) {
  std::vector<std::string> tokens = byte_tokens();
  tokens.insert(tokens.end(), merges.begin(), merges.end());
  return Tokenizer::parse(rank_file(tokens), "", "test");
}

inline Tokenizer nano_tokenizer() { return Tokenizer::load(source_path("models/k3-nano")); }

// What is known of K3's own vocabulary (tests/text/data/README.md), special tokens at 163584..163839.
inline Tokenizer partial_k3_tokenizer() {
  constexpr TokenId first_special = 163584;
  Vocabulary vocabulary = parse_vocabulary(rank_file(byte_tokens()), "", "test");  // for the special names
  vocabulary.tokens.resize(first_special);
  std::ifstream file(source_path("tests/text/data/k3_partial_vocabulary.txt"));
  std::string kind;
  size_t id = 0;
  for (std::string bytes; file >> kind >> id >> bytes;) vocabulary.tokens.at(id) = unbase64(bytes);
  return Tokenizer(std::move(vocabulary));
}

inline ChatRequest chat_request(const nlohmann::ordered_json& json) {
  ChatRequest request;
  request.messages = json.at("messages");
  if (json.contains("tools")) request.tools = json["tools"];
  if (json.contains("thinking")) request.thinking = json["thinking"].get<bool>();
  if (json.contains("thinking_effort")) request.thinking_effort = json["thinking_effort"].get<std::string>();
  if (json.contains("tool_choice")) request.tool_choice = json["tool_choice"].get<std::string>();
  if (json.contains("response_format")) request.response_format = json["response_format"];
  return request;
}

// The request of a line of k3-nano's evaluation set.
inline ChatRequest evaluation_request(const nlohmann::ordered_json& row) {
  ChatRequest request;
  request.messages = row.at("messages");
  if (!row["tools"].is_null()) request.tools = row["tools"];
  const auto& options = row.at("opts");
  if (options.contains("tool_choice")) request.tool_choice = options["tool_choice"].get<std::string>();
  if (options.contains("response_format")) {
    nlohmann::ordered_json format = {{"type", options["response_format"]}};
    if (options.contains("response_schema")) {
      format["json_schema"] = {{"name", "answer"}, {"schema", options["response_schema"]}};
    }
    request.response_format = format;
  }
  return request;
}

}  // namespace trireme::text::test
