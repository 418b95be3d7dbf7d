// A table of a TOML file, read key by key: every refusal names file, line, key, what is there and what would be right.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::layout {

// A table that a file may hold, for names in messages and for finding the nearest key.
struct TableKind {
  std::string_view path;  // "" at the root, "attention" in an instance; messages say path.key
  std::vector<std::string_view> keys;
};

// Borrows the table and `where`.
class TomlTable {
 public:
  // Refuses keys that `kind` does not have, with the nearest one or the table among `all` that has it.
  TomlTable(const toml::table& table, const TableKind& kind, const std::vector<TableKind>& all,
            const std::string& where);

  bool has(std::string_view key) const { return table_.contains(key); }
  const toml::node* find(std::string_view key) const { return table_.get(key); }

  // These return nothing if the key is absent.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key, int64_t least) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key, int64_t least) const;  // not empty
  const toml::table* table(std::string_view key) const;

  // "attention.dp", as messages call a key.
  std::string name(std::string_view key) const;
  // Throws BadInput "where:line: message" at the key, or at the table if the key is absent.
  [[noreturn]] void refuse(std::string_view key, const std::string& message) const;

 private:
  void check_keys(const std::vector<TableKind>& all) const;
  [[noreturn]] void refuse_type(std::string_view key, const toml::node& node, std::string_view right) const;
  int64_t checked(std::string_view key, const toml::node& node, int64_t least) const;

  const toml::table& table_;
  const TableKind& kind_;
  const std::string& where_;
};

// Text on one line: control characters as escapes.
std::string one_line(std::string_view text);

}  // namespace trireme::layout
