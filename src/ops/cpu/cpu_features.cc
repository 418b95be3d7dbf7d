#include "ops/cpu/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace trireme::ops::cpu {
namespace {

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros where the processor does not have the leaf.
Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool has_bit(uint32_t bits, int bit) { return ((bits >> bit) & 1U) != 0; }

// The states that the operating system saves (XCR0); 0 without OSXSAVE.
uint64_t saved_states() {
  constexpr int kOsXsave = 27;
  if (!has_bit(cpuid(1, 0).ecx, kOsXsave)) return 0;
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives tile data only to a process that asked for it.
bool tile_data_granted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures detect() {
  constexpr uint64_t kAvxStates = 0x6;
  constexpr uint64_t kAvx512States = 0xe0;
  constexpr uint64_t kTileStates = 0x60000;
  const uint64_t states = saved_states();
  const Cpuid basic = cpuid(1, 0);
  const Cpuid extended = cpuid(7, 0);

  CpuFeatures f;
  const bool fma = has_bit(basic.ecx, 12);
  const bool f16c = has_bit(basic.ecx, 29);
  f.avx2 = (states & kAvxStates) == kAvxStates && fma && f16c && has_bit(extended.ebx, 5);

  const bool avx512f = has_bit(extended.ebx, 16);
  const bool dq = has_bit(extended.ebx, 17);
  const bool bw = has_bit(extended.ebx, 30);
  const bool vl = has_bit(extended.ebx, 31);
  f.avx512 = f.avx2 && (states & kAvx512States) == kAvx512States && avx512f && dq && bw && vl;

  const bool amx_bf16 = has_bit(extended.edx, 22);
  const bool amx_tile = has_bit(extended.edx, 24);
  f.amx = f.avx512 && amx_bf16 && amx_tile && (states & kTileStates) == kTileStates && tile_data_granted();
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace trireme::ops::cpu
