// JSON files of a checkpoint: parsing that refuses what nlohmann accepts silently, and reading of keys with errors that
// name them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

// A name out of a file, fit for a one-line message: as JSON escapes it, in ASCII, cut at 200 bytes.
std::string printable(std::string_view name);

// Parses `text`, which must be one JSON object (UTF-8) in which no object has a key twice. Throws BadInput naming
// `where`.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

// One object of a JSON file, with the path to it for messages. A key that is absent or null counts as not there.
class JsonObject {
 public:
  // `value` must outlive this. `path` is the dotted path of the object inside the file; empty for the root.
  JsonObject(const nlohmann::json& value, std::string where, std::string path);

  bool has(const std::string& key) const;
  std::vector<std::string> keys() const;  // that are there
  // Integers must be in [low, high].
  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high) const;
  double number(const std::string& key) const;  // finite
  double number_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  // A list of integers in [low, high]; a single integer counts as a list of one.
  std::vector<int64_t> integers(const std::string& key, int64_t low, int64_t high) const;
  std::vector<std::string> texts(const std::string& key) const;
  JsonObject object(const std::string& key) const;

  // The first of several spellings of a key that is there; the first spelling if none is.
  std::string spelling(std::initializer_list<const char*> keys) const;

  // Throws BadInput: "<where>: <path>.<key> is <what it holds>; <rule>".
  [[noreturn]] void fail(const std::string& key, const std::string& rule) const;

 private:
  const nlohmann::json& value(const std::string& key) const;
  std::string name(const std::string& key) const;

  const nlohmann::json* value_;
  std::string where_;
  std::string path_;
};

}  // namespace trireme::checkpoint
