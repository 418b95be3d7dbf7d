#include "cli/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/version.h"
#include "ops/select.h"
#include "tensor/gpu.h"

namespace trireme::cli {
namespace {

// The processor flags that decide which instruction set is used, by Linux' names.
constexpr const char* kFlags[] = {"avx2",     "fma",      "f16c",     "avx512f", "avx512bw",
                                  "avx512vl", "avx512dq", "amx_tile", "amx_bf16"};

struct Processor {
  std::string model = "unknown";
  std::set<std::string> flags;
};

Processor read_processor() {
  Processor processor;
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) processor.model = value;
    if (line.starts_with("flags")) {
      std::istringstream words(value);
      for (std::string word; words >> word;) processor.flags.insert(word);
    }
  }
  return processor;
}

int64_t memory_bytes(int name) { return static_cast<int64_t>(sysconf(name)) * sysconf(_SC_PAGESIZE); }

nlohmann::ordered_json examine() {
  const Processor processor = read_processor();
  nlohmann::ordered_json report;
  report["version"] = kVersion;
  report["processor"] = processor.model;
  report["cores"] = std::thread::hardware_concurrency();
  report["memory_bytes"] = memory_bytes(_SC_PHYS_PAGES);
  report["memory_free_bytes"] = memory_bytes(_SC_AVPHYS_PAGES);
  for (const char* flag : kFlags) report["flags"][flag] = processor.flags.contains(flag);
  const std::vector<std::string_view> isas = ops::available_isas();
  report["isas"] = isas;
  report["isa_in_use"] = isas.front();
  const GpuReport gpus = find_gpus();
  report["gpus"] = nlohmann::ordered_json::array();
  for (const GpuInfo& gpu : gpus.gpus) {
    report["gpus"].push_back({{"name", gpu.name},
                              {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
                              {"multiprocessors", gpu.multiprocessors},
                              {"memory_bytes", gpu.memory_bytes}});
  }
  report["gpu_note"] = gpus.note;
  return report;
}

void print_report(const nlohmann::ordered_json& report) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  fmt::print("trireme      {}\n", report["version"].get<std::string>());
  fmt::print("processor    {}, {} cores\n", report["processor"].get<std::string>(), report["cores"].get<int>());
  fmt::print("memory       {:.1f} GiB, {:.1f} GiB free\n", report["memory_bytes"].get<double>() / kGiB,
             report["memory_free_bytes"].get<double>() / kGiB);
  std::vector<std::string> present;
  std::vector<std::string> absent;
  for (const auto& [flag, has] : report["flags"].items()) (has.get<bool>() ? present : absent).push_back(flag);
  fmt::print("has          {}\n", fmt::join(present, " "));
  fmt::print("lacks        {}\n",
             absent.empty() ? "nothing that Trireme uses" : fmt::format("{}", fmt::join(absent, " ")));
  fmt::print("backends     {} (in use: {})\n", fmt::join(report["isas"].get<std::vector<std::string>>(), " "),
             report["isa_in_use"].get<std::string>());
  if (report["isa_in_use"] == "reference") {
    fmt::print("             only the slow reference operations run here: the fast ones need avx2, fma and f16c\n");
  }
  for (const auto& gpu : report["gpus"]) {
    fmt::print("gpu          {}, compute {}, {} multiprocessors, {:.1f} GiB (seen; the engine runs on the CPU)\n",
               gpu["name"].get<std::string>(), gpu["compute_capability"].get<std::string>(),
               gpu["multiprocessors"].get<int>(), gpu["memory_bytes"].get<double>() / kGiB);
  }
  if (const std::string note = report["gpu_note"]; !note.empty()) fmt::print("gpu          none: {}\n", note);
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Say what this machine can run, and what is missing");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([as_json] {
    const nlohmann::ordered_json report = examine();
    if (*as_json) {
      fmt::print("{}\n", report.dump(2));
    } else {
      print_report(report);
    }
  });
}

}  // namespace trireme::cli
