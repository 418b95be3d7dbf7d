// What commands use when they are not told otherwise.
#pragma once

#include <filesystem>

namespace trireme::cli {

// The folder of the embedded model, k3-nano: beside the build (<executable's folder>/../models) or installed
// (<executable's folder>/../share/trireme/models). Throws BadInput that names both places if it is in neither.
std::filesystem::path default_model_dir();

}  // namespace trireme::cli
