#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/safetensors.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;

// No folder, nothing hidden, and nothing that would spoil a message.
bool plain_file_name(const std::string& name) {
  const auto plain = [](char c) { return c > 0x20 && c < 0x7f && c != '/' && c != '\\'; };
  return name.ends_with(".safetensors") && name.front() != '.' && name.size() < 256 &&
         std::all_of(name.begin(), name.end(), plain);
}

}  // namespace

ShardIndex parse_shard_index(const std::string& json, const std::string& where) {
  const auto parsed = parse_json_object(json, where);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object()) {
    throw BadInput(fmt::format("{}: weight_map must be an object from tensor names to file names", where));
  }
  ShardIndex index{where, {}};
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !plain_file_name(file.get_ref<const std::string&>())) {
      throw BadInput(fmt::format("{}: weight_map puts {} into {}; it must be the plain name of a .safetensors file",
                                 where, printable(tensor),
                                 file.is_string() ? printable(file.get_ref<const std::string&>()) : "no string"));
    }
    index.files.emplace(tensor, file.get<std::string>());
  }
  if (index.files.empty()) throw BadInput(fmt::format("{}: weight_map is empty", where));
  return index;
}

ShardIndex read_shard_index(const std::filesystem::path& dir) {
  const auto index_path = dir / kIndexFile;
  if (has_entry(index_path)) {
    return parse_shard_index(read_text_file(index_path, kMaxIndexBytes), index_path.string());
  }
  const auto single = dir / kSingleFile;
  if (!has_entry(single)) {
    throw BadInput(fmt::format("{}: it has neither {} nor {}", dir.string(), kIndexFile, kSingleFile));
  }
  ShardIndex index{single.string(), {}};
  const SafetensorsFile file(single);
  for (const auto& [name, info] : file.tensors()) index.files.emplace(name, kSingleFile);
  for (const auto& [name, tensor] : file.header().foreign) index.files.emplace(name, kSingleFile);
  return index;
}

}  // namespace trireme::checkpoint
