// Chooses a backend for this machine.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace trireme::ops {

// Instruction sets that both this build and this processor have, fastest first; always ends with "reference".
std::vector<std::string_view> available_isas();

// `isa` is "auto" (the first of available_isas) or one of its names. Throws BadInput naming those that would work.
std::unique_ptr<Ops> make_ops(std::string_view isa, Precision precision, ThreadPool& pool);

}  // namespace trireme::ops
