#include "base/file.h"

#include <fmt/format.h>

#include <fstream>

#include "base/error.h"

namespace trireme {

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status))
    throw BadInput(fmt::format("{}: there is no such file", path.string()));
  if (!std::filesystem::is_regular_file(status))
    throw BadInput(fmt::format("{}: it is not a regular file", path.string()));
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) throw BadInput(fmt::format("{}: its size cannot be read: {}", path.string(), error.message()));
  if (bytes > static_cast<uint64_t>(max_bytes)) {
    throw BadInput(fmt::format("{}: it has {} bytes; at most {} are read", path.string(), bytes, max_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!file || (bytes > 0 && !file.read(text.data(), static_cast<std::streamsize>(bytes)))) {
    throw BadInput(fmt::format("{}: it cannot be read", path.string()));
  }
  return text;
}

bool has_entry(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
}

}  // namespace trireme
