// JSON as text, the way Python's json module writes and reads it: prompts must be K3's prompts to the byte.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

// Deepest nesting of arrays and objects taken from outside. It bounds the recursion of everything that walks a value.
inline constexpr int64_t kMaxJsonDepth = 128;

// Nesting depth of a text that is to be parsed: "1" has 0, "[[1]]" has 2. Never fails: brackets outside strings are
// counted.
int64_t json_text_depth(std::string_view text);

// Parses outside text. Throws BadInput that begins with `what` if it is not JSON or deeper than kMaxJsonDepth.
// Whole numbers beyond 64 bits become doubles.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& what);

// Whether `text` is one JSON value that parse_json would take, and nothing else.
bool is_json(std::string_view text);

// json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False): how K3 shows tools and schemas to the
// model.
std::string canonical_json(const nlohmann::ordered_json& value);
// json.dumps(value, ensure_ascii=False): keys in their order, a space after "," and ":".
std::string spaced_json(const nlohmann::ordered_json& value);
// One string literal, quoted. Control characters, " and \ are escaped, nothing else.
std::string json_quote(std::string_view text);
// Python's repr(float): shortest digits that read back equal, "1.0", "1e+16", "1e-05".
std::string python_float(double value);

// One member of a tool call's arguments, as the chat format shows it.
struct ArgumentText {
  std::string key;   // decoded
  std::string type;  // string, number, boolean, null, object, array
  std::string text;  // decoded for a string, otherwise the literal exactly as it was written
};

// The members of the object at the beginning of `json`, one level deep, in order, duplicates included. What follows the
// closing brace is ignored, control characters may stand raw in strings, NaN and Infinity are numbers, as in Python; a
// lone surrogate escape becomes U+FFFD. Nothing if it is not an object or malformed. Any nesting is walked without
// recursion.
std::optional<std::vector<ArgumentText>> scan_arguments(std::string_view json);

}  // namespace trireme::text
