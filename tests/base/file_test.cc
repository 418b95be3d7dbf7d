#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace trireme {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string refusal(const std::filesystem::path& path) {
    try {
      read_text_file(path, 4);
    } catch (const BadInput& error) {
      return error.what();
    }
    return "nothing thrown";
  }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("trireme-file-" + std::to_string(getpid()));
};

TEST_F(FileTest, ReadsAWholeFile) {
  std::ofstream(folder_ / "a", std::ios::binary) << std::string("a\0\n", 3);
  EXPECT_EQ(read_text_file(folder_ / "a", 3), std::string("a\0\n", 3));
  std::ofstream(folder_ / "b") << "";
  EXPECT_EQ(read_text_file(folder_ / "b", 3), "");
}

// A pipe without a writer would be waited for, /dev/zero read until memory is full.
TEST_F(FileTest, RefusesWhatIsNoSmallFileByName) {
  const std::string at = folder_.string();
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder_ / "endless");
  std::filesystem::create_symlink("loop", folder_ / "loop");
  std::ofstream(folder_ / "large") << "12345";
  EXPECT_EQ(refusal(folder_ / "pipe"), at + "/pipe: it is not a regular file");
  EXPECT_EQ(refusal(folder_ / "endless"), at + "/endless: it is not a regular file");
  EXPECT_EQ(refusal(folder_), at + ": it is not a regular file");
  EXPECT_EQ(refusal(folder_ / "loop"), at + "/loop: there is no such file");
  EXPECT_EQ(refusal(folder_ / "absent"), at + "/absent: there is no such file");
  EXPECT_EQ(refusal(folder_ / "large"), at + "/large: it has 5 bytes; at most 4 are read");
}

TEST_F(FileTest, ABrokenLinkIsAnEntry) {
  std::filesystem::create_symlink("loop", folder_ / "loop");
  std::filesystem::create_symlink("nowhere", folder_ / "dangling");
  EXPECT_TRUE(has_entry(folder_ / "loop"));
  EXPECT_TRUE(has_entry(folder_ / "dangling"));
  EXPECT_TRUE(has_entry(folder_));
  EXPECT_FALSE(has_entry(folder_ / "absent"));
}

}  // namespace
}  // namespace trireme
