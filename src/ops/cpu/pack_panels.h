// From the checkpoint's row-major bytes to panels (linear_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/weight.h"

namespace trireme::ops::cpu {

// Writes panels [panel_begin, panel_end) of `w` into `panels`, the start of the whole packed matrix.
void pack_panels(const WeightView& w, int64_t panel_begin, int64_t panel_end, std::byte* panels);

}  // namespace trireme::ops::cpu
