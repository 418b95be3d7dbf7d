#include "cli/output_path.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

void refuse_same(const std::string& flag, const fs::path& output, const fs::path& input) {
  std::error_code ignored;
  if (!fs::equivalent(output, input, ignored)) return;
  throw BadInput(fmt::format("{} {}: it is the same file as {}, which this command reads; write to another one", flag,
                             output.string(), input.string()));
}

}  // namespace

void refuse_to_overwrite(const std::string& flag, const fs::path& output, std::initializer_list<fs::path> inputs) {
  std::error_code ignored;
  if (!fs::exists(output, ignored)) return;
  for (const fs::path& input : inputs) {
    if (fs::is_directory(input, ignored)) {
      for (const fs::directory_entry& file : fs::directory_iterator(input, ignored))
        refuse_same(flag, output, file.path());
    } else {
      refuse_same(flag, output, input);
    }
  }
}

}  // namespace trireme::cli
