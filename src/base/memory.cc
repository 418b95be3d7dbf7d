#include "base/memory.h"

#include <fstream>
#include <string>

namespace trireme {

std::optional<int64_t> available_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string name, rest; in >> name; std::getline(in, rest)) {
    int64_t kib = 0;
    if (name == "MemAvailable:" && in >> kib) return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace trireme
