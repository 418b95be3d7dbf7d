#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/error.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/safetensors.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::ordered_json;

// The length and the JSON, padded with spaces so that tensors begin at a multiple of 8.
std::string header_bytes(std::span<const TensorHeader> tensors, const std::map<std::string, std::string>& metadata) {
  ordered_json header = ordered_json::object();
  std::set<std::string> names;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  ordered_json::object_t& entries = header.get_ref<ordered_json::object_t&>();
  for (const TensorHeader& tensor : tensors) {
    if (!names.insert(tensor.name).second || tensor.name == "__metadata__") {
      throw BadInput(fmt::format("tensor {} cannot be written: the name is taken", tensor.name));
    }
    ordered_json entry = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes}}};
    entries.emplace_back(tensor.name, std::move(entry));
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  return length + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorHeader> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), temporary_(path.string() + ".part") {
  const std::string header = header_bytes(tensors, metadata);
  for (const TensorHeader& tensor : tensors) expected_ += tensor.bytes;
  // The rename would put a file in the place of a device such as /dev/null.
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw BadInput(fmt::format("{}: it is there and not a regular file; only a file can be written", path_.string()));
  }
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    throw Failure(fmt::format("{}: it cannot be created: {}", temporary_.string(), std::strerror(errno)));
  try {
    write(std::as_bytes(std::span(header)));
  } catch (...) {
    discard();
    throw;
  }
  written_ = 0;
}

void SafetensorsWriter::discard() {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(temporary_.c_str());
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 30;  // some systems refuse a write of 2 GiB
  written_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kPiece));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      throw Failure(fmt::format("{}: it cannot be written: {}", temporary_.string(), std::strerror(errno)));
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

void SafetensorsWriter::finish() {
  if (written_ != expected_) {
    throw Failure(
        fmt::format("{}: {} bytes of tensors were written; the header says {}", path_.string(), written_, expected_));
  }
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;
  if (!closed || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    ::unlink(temporary_.c_str());
    throw Failure(fmt::format("{}: it cannot be written: {}", path_.string(), why));
  }
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorHeader> headers;
  headers.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    int64_t bytes = dtype_bytes(tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= size;
    if (bytes != static_cast<int64_t>(tensor.bytes.size())) {
      throw BadInput(fmt::format("{}: tensor {} has {} bytes; {} [{}] takes {}", path.string(), tensor.name,
                                 tensor.bytes.size(), dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), bytes));
    }
    headers.push_back({tensor.name, std::string(dtype_name(tensor.dtype)), tensor.shape, bytes});
  }
  SafetensorsWriter writer(path, headers, metadata);
  for (const TensorToWrite& tensor : tensors) writer.write(tensor.bytes);
  writer.finish();
}

}  // namespace trireme::checkpoint
