// The published deployments of Kimi K3 as deployment files without a model.
#pragma once

#include <span>
#include <string_view>

namespace trireme::layout {

struct BuiltIn {
  std::string_view name;
  std::string_view toml;
};

std::span<const BuiltIn> built_ins();

}  // namespace trireme::layout
