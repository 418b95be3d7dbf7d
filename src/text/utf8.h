// UTF-8 one character at a time (Unicode 14, table 3-7: no surrogates, no overlong forms, nothing above U+10FFFF).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the bytes at one position are.
struct Utf8Step {
  enum class Kind {
    character,
    invalid,
    incomplete
  };  // incomplete: the text ends inside a character that is right so far
  Kind kind = Kind::invalid;
  int64_t length = 1;  // bytes of the character; of the longest prefix that began one, otherwise (at least 1)
  char32_t code_point = 0xFFFD;
};

// Looks at `bytes` from `position`, which must be inside it.
Utf8Step next_character(std::string_view bytes, int64_t position);

// Offset of the first byte that does not belong to a whole character; nothing if all do.
std::optional<int64_t> first_invalid_byte(std::string_view bytes);

// Appends one character; surrogates and values above U+10FFFF become U+FFFD.
void append_utf8(std::string& out, char32_t code_point);

// Every maximal part that is no character turned into U+FFFD.
std::string replace_invalid(std::string_view bytes);

}  // namespace trireme::text
