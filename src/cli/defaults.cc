#include "cli/defaults.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trireme::cli {

std::filesystem::path default_model_dir() {
  namespace fs = std::filesystem;
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path places[] = {bin / "../models/k3-nano", bin / "../share/trireme/models/k3-nano"};
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json")) return fs::canonical(place);
  }
#ifdef TRIREME_DEFAULT_MODEL
  if (fs::exists(fs::path(TRIREME_DEFAULT_MODEL) / "config.json")) return TRIREME_DEFAULT_MODEL;
#endif
  throw BadInput(fmt::format("--model: the default model is neither at {} nor at {}; name a model's folder",
                             places[0].lexically_normal().string(), places[1].lexically_normal().string()));
}

}  // namespace trireme::cli
