// The project's version, set by the build.
#pragma once

#include <string_view>

namespace trireme {

inline constexpr std::string_view kVersion = TRIREME_VERSION;

}  // namespace trireme
