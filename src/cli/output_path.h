// Where commands may write.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>

namespace trireme::cli {

// Throws BadInput naming both if `output`, the value of `flag`, is one of the inputs or a file in an input that is a
// folder, by whatever name or link. Inputs that are empty or not there are passed over.
void refuse_to_overwrite(const std::string& flag, const std::filesystem::path& output,
                         std::initializer_list<std::filesystem::path> inputs);

}  // namespace trireme::cli
