#include "serve/json_fields.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

namespace trireme::serve {
namespace {

// Looks at brackets and colons outside strings, before anything is built. Whether the text is JSON at all is the
// parser's business.
void check_size(std::string_view text) {
  std::array<int, kMaxJsonDepth + 1> members{};
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) {
        throw ApiError(400, fmt::format("body: JSON is nested deeper than {} levels at byte {}", kMaxJsonDepth, i));
      }
      members[depth] = 0;
    }
    if ((c == '}' || c == ']') && depth > 0) --depth;
    if (c == ':' && ++members[depth] > kMaxJsonMembers) {
      throw ApiError(400, fmt::format("body: a JSON object has more than {} members at byte {}", kMaxJsonMembers, i));
    }
  }
}

std::string range_words(int64_t low, int64_t high) {
  if (high == std::numeric_limits<int64_t>::max()) return fmt::format("an integer of at least {}", low);
  return fmt::format("an integer from {} to {}", low, high);
}

}  // namespace

Json parse_value(std::string_view body) {
  check_size(body);
  // The parser takes a NUL byte for the end and would not look at what follows.
  if (const size_t nul = body.find('\0'); nul != std::string_view::npos)
    throw ApiError(400, fmt::format("body: not valid JSON: a NUL byte at offset {}", nul));
  Json value;
  try {
    value = Json::parse(body);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the library's own tag.
    std::string text = error.what();
    if (const size_t end = text.find("] "); end != std::string::npos) text = text.substr(end + 2);
    // The parser quotes what it read last, which may not be valid UTF-8.
    for (char& c : text) {
      if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
    }
    throw ApiError(400, "body: not valid JSON: " + text.substr(0, 300));
  }
  return value;
}

Json parse_body(std::string_view body) {
  Json value = parse_value(body);
  if (!value.is_object()) throw ApiError(400, "body: must be a JSON object, not " + kind_of(value));
  return value;
}

std::string kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    default:
      return "a number";
  }
}

std::string shown(const Json& value) {
  if (value.is_structured())
    return value.empty() ? (value.is_array() ? "an empty array" : "an empty object") : kind_of(value);
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 40 ? text : kind_of(value);
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

std::string Fields::path(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }

const Json* Fields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::refuse(const char* name, const std::string& wanted) const {
  const Json* value = find(name);
  const std::string field = path(name);
  throw ApiError(400, fmt::format("{}: must be {}, not {}", field, wanted, value == nullptr ? "absent" : shown(*value)),
                 field);
}

std::optional<bool> Fields::boolean(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "true or false");
  return value->get<bool>();
}

int64_t integer_value(const Json& value, const std::string& path, int64_t low, int64_t high) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    throw ApiError(400, fmt::format("{}: must be {}, not {}", path, range_words(low, high), shown(value)), path);
  }
  return value.get<int64_t>();
}

std::optional<int64_t> Fields::integer(const char* name, int64_t low, int64_t high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return integer_value(*value, path(name), low, high);
}

std::optional<double> Fields::number(const char* name, double low, double high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::string wanted =
      std::isinf(high) ? fmt::format("a number of at least {}", low) : fmt::format("a number from {} to {}", low, high);
  if (!value->is_number()) refuse(name, wanted);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) refuse(name, wanted);
  return number;
}

std::optional<std::string> Fields::string(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "a string");
  return value->get<std::string>();
}

std::optional<std::string> Fields::choice(const char* name, const std::vector<std::string>& choices) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::string wanted;
  for (const std::string& choice : choices) {
    if (value->is_string() && value->get_ref<const std::string&>() == choice) return choice;
    wanted += (wanted.empty() ? "" : ", ") + choice;
  }
  refuse(name, choices.size() == 1 ? wanted : "one of " + wanted);
}

const Json* Fields::object(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) refuse(name, "an object");
  return value;
}

const Json* Fields::array(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) refuse(name, "an array");
  return value;
}

}  // namespace trireme::serve
