#include "cli/deployment_flags.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trireme::cli {

layout::Instance choose_instance(const layout::Deployment& deployment, const std::string& name) {
  if (name.empty() && deployment.instances.size() == 1) return deployment.instances.front();
  std::string names;
  for (const layout::Instance& instance : deployment.instances) {
    if (instance.name == name) return instance;
    names += (names.empty() ? "" : ", ") + instance.name;
  }
  if (name.empty())
    throw BadInput(fmt::format("{} has several instances; choose one with --instance: {}", deployment.name, names));
  throw BadInput(fmt::format("--instance {}: {} has {}", name, deployment.name, names));
}

}  // namespace trireme::cli
