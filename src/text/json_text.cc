#include "text/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

using Json = nlohmann::ordered_json;

// Digits and decimal exponent of the shortest form that reads back equal: value = 0.digits * 10^exponent.
struct Shortest {
  bool negative = false;
  std::string digits;
  int exponent = 0;
};

Shortest shortest(double value) {
  std::array<char, 64> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  Shortest out;
  out.negative = text.starts_with('-');
  if (out.negative) text.remove_prefix(1);
  const size_t e = text.find('e');
  std::string_view exponent = text.substr(e + 1);
  if (exponent.starts_with('+')) exponent.remove_prefix(1);
  std::from_chars(exponent.data(), exponent.data() + exponent.size(), out.exponent);
  out.exponent += 1;
  for (const char c : text.substr(0, e)) {
    if (c != '.') out.digits.push_back(c);
  }
  return out;
}

class Writer {
 public:
  Writer(bool sorted, std::string_view comma, std::string_view colon) : sorted_(sorted), comma_(comma), colon_(colon) {}

  void write(const Json& value, int64_t depth) {
    if (depth > kMaxJsonDepth) throw BadInput(fmt::format("nested more than {} deep", kMaxJsonDepth));
    switch (value.type()) {
      case Json::value_t::object:
        return write_object(value, depth);
      case Json::value_t::array:
        return write_array(value, depth);
      case Json::value_t::string:
        out_ += json_quote(value.get_ref<const std::string&>());
        return;
      case Json::value_t::boolean:
        out_ += value.get<bool>() ? "true" : "false";
        return;
      case Json::value_t::number_integer:
        out_ += fmt::format("{}", value.get<int64_t>());
        return;
      case Json::value_t::number_unsigned:
        out_ += fmt::format("{}", value.get<uint64_t>());
        return;
      case Json::value_t::number_float:
        out_ += python_float(value.get<double>());
        return;
      case Json::value_t::null:
        out_ += "null";
        return;
      case Json::value_t::binary:
      case Json::value_t::discarded:
        throw BadInput("holds a value that JSON has no form for");
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write_object(const Json& value, int64_t depth) {
    std::vector<std::pair<const std::string*, const Json*>> members;
    for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) members.emplace_back(&key, &member);
    // Byte order of UTF-8 is code point order.
    if (sorted_)
      std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return *a.first < *b.first; });
    out_ += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out_ += comma_;
      out_ += json_quote(*members[i].first);
      out_ += colon_;
      write(*members[i].second, depth + 1);
    }
    out_ += '}';
  }

  void write_array(const Json& value, int64_t depth) {
    out_ += '[';
    bool first = true;
    for (const Json& element : value) {
      if (!first) out_ += comma_;
      first = false;
      write(element, depth + 1);
    }
    out_ += ']';
  }

  bool sorted_;
  std::string_view comma_;
  std::string_view colon_;
  std::string out_;
};

}  // namespace

int64_t json_text_depth(std::string_view text) {
  int64_t depth = 0;
  int64_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Json parse_json(std::string_view text, const std::string& what) {
  if (json_text_depth(text) > kMaxJsonDepth) {
    throw BadInput(fmt::format("{}: JSON nested more than {} deep", what, kMaxJsonDepth));
  }
  // The library takes a NUL byte for the end of its input, and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw BadInput(fmt::format("{}: not valid JSON: a NUL byte at offset {}", what, nul));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    // The library's message carries its own name in brackets first, and may quote bytes that are no text.
    std::string_view reason = error.what();
    if (const size_t close = reason.find("] "); close != std::string_view::npos) reason.remove_prefix(close + 2);
    throw BadInput(fmt::format("{}: not valid JSON: {}", what, replace_invalid(reason)));
  }
}

bool is_json(std::string_view text) {
  return text.find('\0') == std::string_view::npos && json_text_depth(text) <= kMaxJsonDepth && Json::accept(text);
}

std::string canonical_json(const Json& value) {
  Writer writer(true, ",", ":");
  writer.write(value, 0);
  return writer.take();
}

std::string spaced_json(const Json& value) {
  Writer writer(false, ", ", ": ");
  writer.write(value, 0);
  return writer.take();
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string python_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  const Shortest s = shortest(value);
  const auto digits = static_cast<int>(s.digits.size());
  const std::string sign = s.negative ? "-" : "";
  if (value == 0) return sign + "0.0";
  if (s.exponent > 16 || s.exponent < -3) {
    const std::string fraction = digits > 1 ? fmt::format(".{}", s.digits.substr(1)) : "";
    return fmt::format("{}{}{}e{}{:02}", sign, s.digits[0], fraction, s.exponent > 0 ? '+' : '-',
                       std::abs(s.exponent - 1));
  }
  if (s.exponent <= 0) return fmt::format("{}0.{:0>{}}{}", sign, "", -s.exponent, s.digits);
  if (digits <= s.exponent) return fmt::format("{}{:0<{}}.0", sign, s.digits, s.exponent);
  const std::string_view all = s.digits;
  const auto point = static_cast<size_t>(s.exponent);
  return fmt::format("{}{}.{}", sign, all.substr(0, point), all.substr(point));
}

}  // namespace trireme::text
