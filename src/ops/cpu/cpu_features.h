// What this processor and its operating system let us use.
#pragma once

namespace trireme::ops::cpu {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, VL and DQ: all that the AVX-512 files are compiled for
  bool amx = false;     // avx512, AMX-TILE and AMX-BF16, and the kernel has granted tile state to this process
};

// Asks the processor (CPUID, XCR0) and, for AMX, the kernel; the first call asks, later ones remember.
const CpuFeatures& cpu_features();

}  // namespace trireme::ops::cpu
