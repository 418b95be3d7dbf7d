// Which instance of a deployment a command runs.
#pragma once

#include <string>

#include "layout/deployment.h"

namespace trireme::cli {

// The instance of that name; without a name the only one. Throws BadInput that lists the names otherwise.
layout::Instance choose_instance(const layout::Deployment& deployment, const std::string& name);

}  // namespace trireme::cli
