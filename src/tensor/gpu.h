// The GPUs that this process can see. Built without CUDA, it sees none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct GpuInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string note;  // why there are none, if there are none
};

// Never throws: a driver that is missing or broken is a note.
GpuReport find_gpus();

}  // namespace trireme
