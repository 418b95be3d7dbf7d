// Reading a request body: JSON with bounded depth and width, and typed access to the fields of an object. Every error
// names the field by its path ("messages[2].role"), says what it holds and what would be right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace trireme::serve {

inline constexpr int kMaxJsonDepth = 64;      // of arrays and objects; bounds the recursion of whoever walks the value
inline constexpr int kMaxJsonMembers = 1024;  // of one object; an ordered object is searched from its front

// Parses a body that must be one JSON object. Throws ApiError 400.
Json parse_body(std::string_view body);
// The same for a value of any kind.
Json parse_value(std::string_view body);

// "an integer", "a string": for messages.
std::string kind_of(const Json& value);
// The value itself if it is short, otherwise its kind.
std::string shown(const Json& value);

// Optional typed fields of one object; a field that is absent or null reads as nullopt, one of another type throws
// ApiError 400.
class Fields {
 public:
  // `object` must outlive this and be an object; `path` is put before field names ("" at the top).
  Fields(const Json& object, std::string path);

  // The value, or nullptr if absent or null.
  const Json* find(const char* name) const;
  std::string path(const std::string& name) const;

  std::optional<bool> boolean(const char* name) const;
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const;
  std::optional<double> number(const char* name, double low, double high) const;
  std::optional<std::string> string(const char* name) const;
  // One of `choices`.
  std::optional<std::string> choice(const char* name, const std::vector<std::string>& choices) const;
  const Json* object(const char* name) const;
  const Json* array(const char* name) const;

  // Throws ApiError 400: "<path>: must be <wanted>, not <value>".
  [[noreturn]] void refuse(const char* name, const std::string& wanted) const;

 private:
  const Json& object_;
  std::string path_;
};

// An integer in [low, high]; `path` for the error.
int64_t integer_value(const Json& value, const std::string& path, int64_t low, int64_t high);

}  // namespace trireme::serve
