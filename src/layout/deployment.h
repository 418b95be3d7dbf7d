// Deployment files: TOML that describes every instance once (docs/deployment.md).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layout/instance.h"

namespace trireme::layout {

struct Deployment {
  std::string name;                            // of the file or the built-in
  std::optional<std::filesystem::path> model;  // relative paths count from the file's folder
  std::vector<Instance> instances;             // at least one
};

// Reads a file, or takes the built-in of that name (prefill-pp16, decode-dp16, decode-dp2-dcp8, prefill-tp4-pp8-ep4,
// decode-tp32). Unknown keys, keys of a wrong type or range, repeated keys and settings that would have no effect are
// refused with file, line and a value that would be right. Does not look at the model: resolve() does.
Deployment read_deployment(const std::string& file_or_name);
Deployment parse_deployment(std::string_view toml, const std::string& where);

std::vector<std::string_view> built_in_deployments();

}  // namespace trireme::layout
