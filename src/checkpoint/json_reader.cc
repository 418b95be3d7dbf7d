#include "checkpoint/json_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "base/error.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

// What a key holds, short enough for a message.
std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

int64_t checked_integer(const json& value, int64_t low, int64_t high, bool& good) {
  good = value.is_number_integer();
  if (!good) return 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    good = false;
    return 0;
  }
  const auto number = value.get<int64_t>();
  good = number >= low && number <= high;
  return number;
}

// Watches a parse for an object that has a key twice. (The callbacks of json::parse could do it too, but take time
// quadratic in the number of keys, and an index has half a million.)
class RepeatedKeys : public nlohmann::json_sax<json> {
 public:
  const std::optional<std::string>& found() const { return found_; }

  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    found_ = name;
    return false;
  }
  bool start_object(std::size_t /*elements*/) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t /*elements*/) override { return true; }
  bool end_array() override { return true; }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& /*error*/) override {
    return false;  // the parse that follows says what is wrong
  }

 private:
  std::vector<std::unordered_set<std::string>> open_;
  std::optional<std::string> found_;
};

std::string range_rule(int64_t low, int64_t high) {
  return fmt::format("it must be an integer from {} to {}", low, high);
}

}  // namespace

std::string printable(std::string_view name) {
  constexpr size_t kLongest = 200;
  const std::string quoted =
      json(std::string(name.substr(0, kLongest))).dump(-1, ' ', true, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2) + (name.size() > kLongest ? "..." : "");
}

json parse_json_object(std::string_view text, const std::string& where) {
  json parsed;
  // The parser takes a NUL byte for the end and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw BadInput(fmt::format("{}: it is not valid JSON: a NUL byte at offset {}", where, nul));
  try {
    RepeatedKeys repeated;
    json::sax_parse(text.begin(), text.end(), &repeated);
    if (repeated.found())
      throw BadInput(fmt::format("{}: the key {} is there twice", where, printable(*repeated.found())));
    parsed = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    // The library's message carries its own name in brackets first.
    std::string_view reason = error.what();
    if (const size_t close = reason.find("] "); close != std::string_view::npos) reason.remove_prefix(close + 2);
    throw BadInput(fmt::format("{}: it is not valid JSON: {}", where, printable(reason)));
  }
  if (!parsed.is_object())
    throw BadInput(fmt::format("{}: it holds {}; it must be a JSON object", where, shown(parsed)));
  return parsed;
}

JsonObject::JsonObject(const json& value, std::string where, std::string path)
    : value_(&value), where_(std::move(where)), path_(std::move(path)) {
  if (!value.is_object())
    throw BadInput(fmt::format("{}: {} is {}; it must be an object", where_, path_, shown(value)));
}

std::string JsonObject::name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

bool JsonObject::has(const std::string& key) const {
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, held] : value_->items()) {
    if (!held.is_null()) names.push_back(key);
  }
  return names;
}

const json& JsonObject::value(const std::string& key) const {
  const auto found = value_->find(key);
  if (found == value_->end()) throw BadInput(fmt::format("{}: {} is missing", where_, name(key)));
  if (found->is_null()) throw BadInput(fmt::format("{}: {} is null; it must have a value", where_, name(key)));
  return *found;
}

void JsonObject::fail(const std::string& key, const std::string& rule) const {
  const auto found = value_->find(key);
  throw BadInput(
      fmt::format("{}: {} is {}; {}", where_, name(key), found == value_->end() ? "missing" : shown(*found), rule));
}

int64_t JsonObject::integer(const std::string& key, int64_t low, int64_t high) const {
  bool good = false;
  const int64_t number = checked_integer(value(key), low, high, good);
  if (!good) fail(key, range_rule(low, high));
  return number;
}

std::optional<int64_t> JsonObject::optional_integer(const std::string& key, int64_t low, int64_t high) const {
  if (!has(key)) return std::nullopt;
  return integer(key, low, high);
}

double JsonObject::number(const std::string& key) const {
  const json& held = value(key);
  if (!held.is_number() || !std::isfinite(held.get<double>())) fail(key, "it must be a finite number");
  return held.get<double>();
}

double JsonObject::number_or(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool JsonObject::boolean_or(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const json& held = value(key);
  if (!held.is_boolean()) fail(key, "it must be true or false");
  return held.get<bool>();
}

std::string JsonObject::text(const std::string& key) const {
  const json& held = value(key);
  if (!held.is_string()) fail(key, "it must be a string");
  return held.get<std::string>();
}

std::string JsonObject::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<int64_t> JsonObject::integers(const std::string& key, int64_t low, int64_t high) const {
  const json& held = value(key);
  bool good = false;
  if (!held.is_array()) return {integer(key, low, high)};
  std::vector<int64_t> numbers;
  for (const json& item : held) {
    numbers.push_back(checked_integer(item, low, high, good));
    if (!good) {
      throw BadInput(fmt::format("{}: {} holds {}; {}", where_, name(key), shown(item),
                                 "every item " + range_rule(low, high).substr(3)));
    }
  }
  return numbers;
}

std::vector<std::string> JsonObject::texts(const std::string& key) const {
  const json& held = value(key);
  if (!held.is_array()) fail(key, "it must be a list of strings");
  std::vector<std::string> items;
  for (const json& item : held) {
    if (!item.is_string())
      throw BadInput(fmt::format("{}: {} holds {}; it must hold strings", where_, name(key), shown(item)));
    items.push_back(item.get<std::string>());
  }
  return items;
}

JsonObject JsonObject::object(const std::string& key) const { return {value(key), where_, name(key)}; }

std::string JsonObject::spelling(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    if (has(key)) return key;
  }
  return *keys.begin();
}

}  // namespace trireme::checkpoint
