#include "text/utf8.h"

namespace trireme::text {

namespace {

struct Lead {
  int64_t length = 0;  // 0: no character begins with this byte
  uint8_t low = 0x80;  // range of the second byte, which rules out overlong forms and surrogates
  uint8_t high = 0xBF;
};

Lead lead(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Step next_character(std::string_view bytes, int64_t position) {
  const auto at = [&](int64_t i) { return static_cast<uint8_t>(bytes[static_cast<size_t>(i)]); };
  const auto size = static_cast<int64_t>(bytes.size());
  const uint8_t first = at(position);
  const Lead shape = lead(first);
  if (shape.length == 0) return {Utf8Step::Kind::invalid, 1, 0xFFFD};
  if (shape.length == 1) return {Utf8Step::Kind::character, 1, first};
  char32_t code = first & (0x7FU >> shape.length);
  for (int64_t i = 1; i < shape.length; ++i) {
    if (position + i >= size) return {Utf8Step::Kind::incomplete, i, 0xFFFD};
    const uint8_t byte = at(position + i);
    const uint8_t low = i == 1 ? shape.low : uint8_t{0x80};
    const uint8_t high = i == 1 ? shape.high : uint8_t{0xBF};
    if (byte < low || byte > high) return {Utf8Step::Kind::invalid, i, 0xFFFD};
    code = (code << 6) | (byte & 0x3FU);
  }
  return {Utf8Step::Kind::character, shape.length, code};
}

std::optional<int64_t> first_invalid_byte(std::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  for (int64_t i = 0; i < size;) {
    const Utf8Step step = next_character(bytes, i);
    if (step.kind != Utf8Step::Kind::character) return i;
    i += step.length;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<uint8_t>(byte))); };
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = 0xFFFD;
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string replace_invalid(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (int64_t i = 0; i < static_cast<int64_t>(bytes.size());) {
    const Utf8Step step = next_character(bytes, i);
    if (step.kind == Utf8Step::Kind::character) {
      out += bytes.substr(static_cast<size_t>(i), static_cast<size_t>(step.length));
    } else {
      out += kReplacement;
    }
    i += step.length;
  }
  return out;
}

}  // namespace trireme::text
