// One safetensors file: an 8-byte little-endian header length, a JSON header, and tensor bytes.
// Definition: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace trireme::checkpoint {

struct TensorInfo {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // byte offsets from the start of the file
  int64_t end = 0;
  int64_t bytes() const { return end - begin; }
};

// A tensor of a dtype that safetensors defines and this engine does not compute with (F64, BOOL, I8, ...).
struct ForeignTensor {
  std::string dtype;
  TensorInfo info;  // its dtype field means nothing
};

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, ForeignTensor> foreign;
  std::map<std::string, std::string> metadata;
};

// Parses a header: `bytes` are the file's first bytes (at least the whole header), `file_bytes` its size. Checks header
// length, JSON, dtypes, shapes, offsets in range, sizes equal to dtype * shape, no name twice, no overlap, no gap.
// Throws BadInput naming `where` and the tensor.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_bytes,
                                           const std::string& where);

// A mapped file. Move-only; spans stay valid while it lives. Reading a file that was cut short after it was opened ends
// the process (SIGBUS), as with any mapping.
class SafetensorsFile {
 public:
  // Maps the file and parses its header. Throws BadInput naming the path.
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::filesystem::path& path() const;
  const std::map<std::string, TensorInfo>& tensors() const;
  const SafetensorsHeader& header() const;
  int64_t file_bytes() const;
  std::span<const std::byte> bytes(const TensorInfo& info) const;

  // Asks the kernel to start reading the bytes [begin, end) of the file.
  void will_need(int64_t begin, int64_t end) const;
  // Gives back the memory of the pages that hold bytes [begin, end) of the file; they are read again if touched again.
  void release(int64_t begin, int64_t end) const;
  // Where a span of bytes() begins in the file; -1 if it is not of this file.
  int64_t offset_of(std::span<const std::byte> bytes) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a file to be written holds.
struct TensorHeader {
  std::string name;
  std::string dtype;  // as in the header: "BF16"
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// Writes a file piece by piece, atomically: into a temporary beside it that finish() renames. Without finish() nothing
// stays.
class SafetensorsWriter {
 public:
  // Throws BadInput if the tensors have a name twice, Failure naming the path if it cannot be written.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorHeader> tensors,
                    const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The next bytes, tensor after tensor in the given order.
  void write(std::span<const std::byte> bytes);
  // Throws Failure if fewer or more bytes were written than the header says.
  void finish();

 private:
  void discard();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  int64_t expected_ = 0;
  int64_t written_ = 0;
};

// What to write: bytes are not owned.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};
// Writes a file atomically (a temporary beside it, then rename). Throws Failure naming the path.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace trireme::checkpoint
