// scan_arguments: a reader of JSON literals that keeps them as they were written.
#include "text/json_text.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<std::vector<ArgumentText>> members() {
    std::vector<ArgumentText> out;
    skip_space();
    if (!take('{')) return std::nullopt;
    skip_space();
    if (take('}')) return out;
    while (true) {
      ArgumentText member;
      if (!key(&member.key)) return std::nullopt;
      skip_space();
      const size_t begin = position_;
      std::string decoded;
      member.type = type_of(peek());
      if (member.type == "string") {
        if (!string(&member.text)) return std::nullopt;
      } else {
        if (!value()) return std::nullopt;
        member.text = text_.substr(begin, position_ - begin);
      }
      out.push_back(std::move(member));
      skip_space();
      if (take('}')) return out;
      if (!take(',')) return std::nullopt;
      skip_space();
    }
  }

 private:
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }
  bool take(char c) {
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(position_).starts_with(word)) return false;
    position_ += word.size();
    return true;
  }
  void skip_space() {
    while (position_ < text_.size() && std::string_view(" \t\n\r").find(text_[position_]) != std::string_view::npos)
      ++position_;
  }

  static std::string type_of(char first) {
    switch (first) {
      case '"':
        return "string";
      case '{':
        return "object";
      case '[':
        return "array";
      case 't':
      case 'f':
        return "boolean";
      case 'n':
        return "null";
      default:
        return "number";
    }
  }

  // A member's name and the colon behind it.
  bool key(std::string* out) {
    if (!string(out)) return false;
    skip_space();
    return take(':');
  }

  bool string(std::string* out) {
    if (!take('"')) return false;
    while (position_ < text_.size()) {
      const char c = text_[position_++];
      if (c == '"') return true;
      if (c != '\\') {
        out->push_back(c);
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool escape(std::string* out) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char c = peek();
    if (position_ < text_.size()) ++position_;
    if (const size_t which = letters.find(c); which != std::string_view::npos) {
      out->push_back(meanings[which]);
      return true;
    }
    if (c != 'u') return false;
    std::optional<char32_t> code = hex4();
    if (!code) return false;
    if (*code >= 0xD800 && *code < 0xDC00 && text_.substr(position_).starts_with("\\u")) {
      const size_t back = position_;
      position_ += 2;
      const std::optional<char32_t> low = hex4();
      if (!low) return false;
      if (*low >= 0xDC00 && *low < 0xE000) {
        code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        position_ = back;
      }
    }
    append_utf8(*out, *code);
    return true;
  }

  std::optional<char32_t> hex4() {
    if (text_.size() - position_ < 4) return std::nullopt;
    char32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = text_[position_++];
      const bool digit = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!digit && (lower < 'a' || lower > 'f')) return std::nullopt;
      code = code * 16 + static_cast<char32_t>(digit ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  bool digits() {
    const size_t begin = position_;
    while (peek() >= '0' && peek() <= '9') ++position_;
    return position_ > begin;
  }

  bool number() {
    if (take("-Infinity")) return true;
    take('-');
    if (!take('0') && !digits()) return false;
    // A point or an exponent without digits is left standing, and then found wrong by whoever expects a comma.
    const size_t whole = position_;
    if (take('.') && !digits()) position_ = whole;
    const size_t mantissa = position_;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) position_ = mantissa;
    }
    return true;
  }

  bool scalar() {
    if (peek() == '"') {
      std::string ignored;
      return string(&ignored);
    }
    return take("true") || take("false") || take("null") || take("NaN") || take("Infinity") || number();
  }

  // Passes over one value of any depth; `open` holds the closers that are still due.
  bool value() {
    std::string open;
    while (true) {
      skip_space();
      if (take('{')) {
        skip_space();
        if (!take('}')) {
          open.push_back('}');
          std::string ignored;
          if (!key(&ignored)) return false;
          continue;
        }
      } else if (take('[')) {
        skip_space();
        if (!take(']')) {
          open.push_back(']');
          continue;
        }
      } else if (!scalar()) {
        return false;
      }
      if (!close(&open)) return false;
      if (open.empty()) return true;
    }
  }

  // After a value: closers, then a comma that leads to the next value unless all is closed.
  bool close(std::string* open) {
    while (!open->empty()) {
      skip_space();
      if (take(open->back())) {
        open->pop_back();
        continue;
      }
      if (!take(',')) return false;
      if (open->back() == ']') return true;
      skip_space();
      std::string ignored;
      return key(&ignored);
    }
    return true;
  }

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace

std::optional<std::vector<ArgumentText>> scan_arguments(std::string_view json) { return Scanner(json).members(); }

}  // namespace trireme::text
