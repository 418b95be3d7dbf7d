#include <cuda_runtime_api.h>

#include "tensor/gpu.h"

namespace trireme {

GpuReport find_gpus() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    return {{}, cudaGetErrorString(status)};
  }
  GpuReport report;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess) {
      report.note = cudaGetErrorString(status);
      continue;
    }
    report.gpus.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                           static_cast<int64_t>(properties.totalGlobalMem)});
  }
  if (report.gpus.empty() && report.note.empty()) report.note = "the driver reports no device";
  return report;
}

}  // namespace trireme
