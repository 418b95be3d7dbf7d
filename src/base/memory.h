// How much memory this machine can still give.
#pragma once

#include <cstdint>
#include <optional>

namespace trireme {

// Bytes that programs can take without swapping, by the kernel's estimate (MemAvailable). No value if it gives none.
std::optional<int64_t> available_memory();

}  // namespace trireme
