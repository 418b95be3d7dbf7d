// The floors of the house: a room includes only rooms below it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

// For each room, the rooms whose headers it may include (itself always).
const std::map<std::string, std::set<std::string>>& floors() {
  static const std::map<std::string, std::set<std::string>> kFloors = [] {
    std::map<std::string, std::set<std::string>> allowed;
    allowed["base"] = {};
    allowed["tensor"] = {"base"};
    for (const char* room : {"checkpoint", "text", "ops"}) allowed[room] = {"base", "tensor"};
    allowed["comm"] = {"base", "tensor"};
    allowed["layout"] = {"base", "tensor", "checkpoint", "comm"};
    allowed["ledger"] = {"base", "tensor", "checkpoint", "ops", "comm", "layout"};
    for (const char* room : {"model", "cache"}) {
      allowed[room] = allowed["ledger"];
      allowed[room].insert("ledger");
    }
    allowed["engine"] = allowed["model"];
    allowed["engine"].insert({"model", "cache"});
    allowed["serve"] = allowed["engine"];
    allowed["serve"].insert({"engine", "text"});
    allowed["cli"] = allowed["serve"];
    allowed["cli"].insert("serve");
    return allowed;
  }();
  return kFloors;
}

std::string breach(const std::string& file, const std::string& room, const std::string& included) {
  const std::string target = included.substr(0, included.find('/'));
  if (target != room && !floors().at(room).contains(target))
    return file + ": " + room + " must not include " + included;
  const bool backend =
      included.starts_with("ops/cpu/") || included.starts_with("ops/reference/") || included.starts_with("ops/cuda/");
  const std::string folder = included.substr(0, included.find('/', 4) + 1);
  if (backend && !file.starts_with(folder) && file != "ops/select.cc") {
    return file + ": only ops/select.cc may include the backend header " + included;
  }
  return "";
}

TEST(Floors, EveryIncludeStaysBelow) {
  const fs::path src = fs::path(TRIREME_SOURCE_DIR) / "src";
  const std::regex include("^\\s*#\\s*include\\s*\"([^\"]+)\"");
  int includes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = fs::relative(entry.path(), src).generic_string();
    if (file.find('/') == std::string::npos) continue;  // main.cc stands above all rooms
    const std::string room = file.substr(0, file.find('/'));
    ASSERT_TRUE(floors().contains(room)) << file << " is in a room that the test does not know";
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      ++includes;
      const std::string included = match[1];
      EXPECT_TRUE(fs::exists(src / included)) << file << " includes " << included << ", written from src/?";
      EXPECT_EQ(breach(file, room, included), "");
    }
  }
  EXPECT_GT(includes, 50) << "the scan found almost nothing; is the pattern wrong?";
}

TEST(Floors, ABreachIsNamed) {
  EXPECT_NE(breach("ops/linear.cc", "ops", "model/model.h"), "");
  EXPECT_NE(breach("model/model.cc", "model", "cache/pages.h"), "");
  EXPECT_NE(breach("engine/engine.cc", "engine", "text/chat.h"), "");
  EXPECT_NE(breach("model/model.cc", "model", "ops/cpu/cpu_ops.h"), "");
  EXPECT_EQ(breach("ops/select.cc", "ops", "ops/cpu/cpu_ops.h"), "");
  EXPECT_EQ(breach("serve/chat.cc", "serve", "text/chat.h"), "");
}

}  // namespace
