// Any bytes as a safetensors file: either BadInput, or tensors that cover the file exactly.
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "fuzz/seeds.h"

namespace {

std::string with_length(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file + header + std::string(data_bytes, 'x');
}

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> kSeeds = {
      with_length(
          R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[4],"data_offsets":[24,28]}})",
          28),
      with_length(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}   )", 2),
      with_length(
          R"({"a":{"dtype":"F64","shape":[0,9],"data_offsets":[0,0]},"b":{"dtype":"F8_E4M3","shape":[1,1,1],"data_offsets":[0,1]}})",
          1),
      with_length("{}", 0)};
  return kSeeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  try {
    const auto file_bytes = static_cast<int64_t>(size);
    const SafetensorsHeader header = parse_safetensors_header(std::as_bytes(std::span(data, size)), file_bytes, "file");
    int64_t covered = 0;
    for (const auto& [name, info] : header.tensors) {
      int64_t bytes = dtype_bytes(info.dtype);
      for (const int64_t dimension : info.shape) bytes *= dimension;
      if (info.begin < 8 || info.end > file_bytes || bytes != info.bytes()) std::abort();
      covered += bytes;
    }
    for (const auto& [name, foreign] : header.foreign) covered += foreign.info.bytes();
    if (covered > file_bytes - 8) std::abort();
  } catch (const BadInput& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
