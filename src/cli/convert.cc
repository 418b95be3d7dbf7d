#include "cli/convert.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "cli/engine_flags.h"

namespace trireme::cli {
namespace {

struct Options {
  std::string from;
  std::string to;
  std::string fp8;
  int threads = 0;
};

void print_report(const checkpoint::ConvertReport& report) {
  fmt::print("{:<6} {:>8} {:>18} {:>15} {:>13} {:>18}\n", "group", "tensors", "parameters", "relative error",
             "worst error", "bytes saved");
  for (const auto& [group, counts] : report.groups) {
    fmt::print("{:<6} {:>8} {:>18} {:>15.6f} {:>13.6f} {:>18}\n", fp8_group_name(group), counts.tensors,
               counts.parameters, counts.error.relative(), counts.error.worst,
               counts.bytes_before - counts.bytes_after);
  }
  fmt::print(
      "relative error: root mean square of the differences over that of the weights; worst error: largest difference "
      "over the\n"
      "largest weight of its block\n");
  fmt::print("{} -> {} bytes of tensors in {} files, {} saved\n", report.bytes_before, report.bytes_after, report.files,
             report.bytes_before - report.bytes_after);
}

void run(const Options& options) {
  const auto groups = checkpoint::parse_fp8_groups(options.fp8);
  const auto report = checkpoint::convert_to_fp8(options.from, options.to, groups, thread_count(options.threads));
  checkpoint::Checkpoint::open(options.to);  // what was written must be valid
  print_report(report);
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand("convert", "Make a block-FP8 checkpoint from a BF16 one");
  const auto options = std::make_shared<Options>();
  command->add_option("--from", options->from, "Folder of the source checkpoint")->required()->check(not_empty());
  command->add_option("--to", options->to, "Folder to write, new or empty")->required()->check(not_empty());
  command->add_option("--fp8", options->fp8, "Groups of matrices to convert, separated by commas: attn, moe, dense")
      ->required();
  command->add_option("--threads", options->threads, "Threads to work on; 0 (default): one a core")
      ->check(CLI::Range(0, 1024));
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
