// Files that are read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

// The whole of a small file. Throws BadInput naming the path if it is not a readable regular file (a pipe would be
// waited for, a device may never end) or is over max_bytes.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes);

// Whether the folder has an entry of this name, be it a link to nowhere: what is there but unusable is an error, not an
// absent file.
bool has_entry(const std::filesystem::path& path);

}  // namespace trireme
