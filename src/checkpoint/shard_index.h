// Which file holds which tensor: model.safetensors.index.json, or the one file model.safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace trireme::checkpoint {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleFile = "model.safetensors";

struct ShardIndex {
  std::string where;                         // the file that says so, for messages
  std::map<std::string, std::string> files;  // stored tensor name -> name of a file in the same folder
};

// Reads the text of an index. Every file must be a plain name that ends in ".safetensors". Throws BadInput naming
// `where`.
ShardIndex parse_shard_index(const std::string& json, const std::string& where);

// The index of a folder. Throws BadInput if there is neither an index nor a model.safetensors.
ShardIndex read_shard_index(const std::filesystem::path& dir);

}  // namespace trireme::checkpoint
