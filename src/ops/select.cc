#include "ops/select.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops {

std::vector<std::string_view> available_isas() {
  const cpu::CpuFeatures& features = cpu::cpu_features();
  std::vector<std::string_view> isas;
  if (features.amx) isas.emplace_back("amx");
  if (features.avx512) isas.emplace_back("avx512");
  if (features.avx2) isas.emplace_back("avx2");
  isas.emplace_back("reference");
  return isas;
}

std::unique_ptr<Ops> make_ops(std::string_view isa, Precision precision, ThreadPool& pool) {
  const std::vector<std::string_view> available = available_isas();
  const auto found = isa == "auto" ? available.begin() : std::find(available.begin(), available.end(), isa);
  if (found == available.end()) {
    throw BadInput(
        fmt::format("instruction set \"{}\" is not one this machine and build can run; it must be auto or one of {}",
                    isa, fmt::join(available, ", ")));
  }
  const std::string_view chosen = *found;  // a literal; `isa` may not live as long as the backend
  const auto cpu_ops = [&](const cpu::LinearKernels& linear, const cpu::RowKernels& rows) {
    return std::make_unique<cpu::CpuOps>(chosen, linear, rows, precision, pool);
  };
  if (chosen == "amx") return cpu_ops(cpu::kLinearKernelsAmx, cpu::kRowKernelsAvx512);
  if (chosen == "avx512") return cpu_ops(cpu::kLinearKernelsAvx512, cpu::kRowKernelsAvx512);
  if (chosen == "avx2") return cpu_ops(cpu::kLinearKernelsAvx2, cpu::kRowKernelsAvx2);
  return std::make_unique<reference::ReferenceOps>(precision, pool);
}

}  // namespace trireme::ops
