// Loading takes exactly the memory that the ledger planned, whatever the backend, precision and formats.
#include <gtest/gtest.h>

#include "support/loaded_model.h"
#include "support/tensors.h"

namespace trireme::testing {
namespace {

class LoadingTest : public ::testing::TestWithParam<std::string> {};

TEST_P(LoadingTest, TakesEveryPlannedWeightByte) {
  const std::vector<std::filesystem::path> folders = {source_dir() / "models/k3-nano",
                                                      source_dir() / "tests/golden/kimi-linear-tiny",
                                                      shared_dir() / "golden/tiny-a", shared_dir() / "golden/tiny-b"};
  for (const std::filesystem::path& folder : folders) {
    if (!std::filesystem::exists(folder / "config.json")) {
      std::cout << "not there, left out: " << folder << "\n";
      continue;
    }
    for (const ops::Precision precision : {ops::Precision::f32, ops::Precision::bf16}) {
      const LoadedModel loaded(folder, GetParam(), precision);
      int lines = 0;
      for (const ledger::Line& line : loaded.account.plan().lines) {
        if (!line.name.starts_with("weights.")) continue;
        ++lines;
        EXPECT_GT(line.bytes, 0) << line.name;
        EXPECT_EQ(loaded.account.taken(line.name), line.bytes) << folder << " " << line.name;
      }
      EXPECT_GE(lines, 9) << folder;
    }
  }
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const std::string_view isa : ops::available_isas()) names.emplace_back(isa);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Isa, LoadingTest, ::testing::ValuesIn(isas()), [](const auto& param) { return param.param; });

}  // namespace
}  // namespace trireme::testing
