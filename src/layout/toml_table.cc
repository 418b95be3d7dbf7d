#include "layout/toml_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace trireme::layout {
namespace {

constexpr int64_t kMost = 1'000'000'000;

// Insertions, removals and replacements between the two.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j + 1] + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string_view nearest(std::string_view key, const std::vector<std::string_view>& keys) {
  return *std::min_element(keys.begin(), keys.end(), [&](std::string_view a, std::string_view b) {
    return edit_distance(key, a) < edit_distance(key, b);
  });
}

std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a float";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

std::string_view table_name(std::string_view path) { return path.empty() ? "the file's root" : path; }

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

TomlTable::TomlTable(const toml::table& table, const TableKind& kind, const std::vector<TableKind>& all,
                     const std::string& where)
    : table_(table), kind_(kind), where_(where) {
  check_keys(all);
}

void TomlTable::check_keys(const std::vector<TableKind>& all) const {
  const auto has_key = [](const TableKind& kind, std::string_view key) {
    return std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
  };
  for (const auto& [key, node] : table_) {
    const std::string_view text = key.str();
    if (has_key(kind_, text)) continue;
    const std::string shown = one_line(text.substr(0, 64));
    const auto other = std::find_if(all.begin(), all.end(), [&](const TableKind& kind) { return has_key(kind, text); });
    const std::string advice =
        other != all.end() ? fmt::format("it belongs to {}", table_name(other->path))
                           : fmt::format("the nearest known key is {}", nearest(text.substr(0, 64), kind_.keys));
    throw BadInput(fmt::format("{}:{}: unknown key {} in {}; {}", where_, key.source().begin.line, shown,
                               table_name(kind_.path), advice));
  }
}

std::string TomlTable::name(std::string_view key) const {
  return kind_.path.empty() || kind_.path == "[[instance]]" ? std::string(key) : fmt::format("{}.{}", kind_.path, key);
}

void TomlTable::refuse(std::string_view key, const std::string& message) const {
  const toml::node* node = table_.get(key);
  const auto line = (node != nullptr ? node->source() : table_.source()).begin.line;
  throw BadInput(fmt::format("{}:{}: {}", where_, std::max<decltype(line)>(line, 1), message));
}

void TomlTable::refuse_type(std::string_view key, const toml::node& node, std::string_view right) const {
  refuse(key, fmt::format("{} holds {}; {} would be right", name(key), type_name(node), right));
}

std::optional<std::string> TomlTable::text(std::string_view key) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_string()) refuse_type(key, *node, "a string");
  if (node->as_string()->get().empty()) refuse(key, fmt::format("{} is empty; a text would be right", name(key)));
  return node->as_string()->get();
}

std::optional<bool> TomlTable::flag(std::string_view key) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_boolean()) refuse_type(key, *node, "true or false");
  return node->as_boolean()->get();
}

int64_t TomlTable::checked(std::string_view key, const toml::node& node, int64_t least) const {
  if (!node.is_integer()) refuse_type(key, node, fmt::format("an integer such as {}", std::max<int64_t>(least, 1)));
  const int64_t value = node.as_integer()->get();
  if (value < least || value > kMost) {
    refuse(key, fmt::format("{} = {} is out of range; {} to {} would be right", name(key), value, least, kMost));
  }
  return value;
}

std::optional<int64_t> TomlTable::integer(std::string_view key, int64_t least) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return std::nullopt;
  return checked(key, *node, least);
}

std::optional<std::vector<int64_t>> TomlTable::integers(std::string_view key, int64_t least) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_array()) refuse_type(key, *node, "an array of integers");
  std::vector<int64_t> values;
  for (const toml::node& element : *node->as_array()) values.push_back(checked(key, element, least));
  if (values.empty()) refuse(key, fmt::format("{} = [] has no effect; leaving it out would be right", name(key)));
  return values;
}

const toml::table* TomlTable::table(std::string_view key) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return nullptr;
  if (!node->is_table()) refuse_type(key, *node, "a table");
  return node->as_table();
}

}  // namespace trireme::layout
