#include "cli/engine_flags.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trireme::cli {

CLI::Validator not_empty() {
  return {[](const std::string& value) { return std::string(value.empty() ? "must not be empty" : ""); }, ""};
}

void add_compute_flags(CLI::App& command, std::filesystem::path& model, ops::Precision& precision, std::string& isa,
                       int& threads) {
  command.add_option("--model", model, "The model's folder; the embedded k3-nano if absent")->check(not_empty());
  command
      .add_option_function<std::string>(
          "--precision",
          [&precision](const std::string& name) {
            precision = name == "f32" ? ops::Precision::f32 : ops::Precision::bf16;
          },
          fmt::format("What activations are rounded to: f32 or bf16 (default {})", precision_name(precision)))
      ->check(CLI::IsMember({"f32", "bf16"}));
  command.add_option("--isa", isa, "auto (default), or a backend that trireme doctor lists");
  command.add_option("--threads", threads, "Threads to compute on; 0 (default): one a core")
      ->check(CLI::Range(0, 1024));
}

void add_engine_flags(CLI::App& command, engine::EngineOptions& options) {
  add_compute_flags(command, options.model, options.precision, options.isa, options.threads);
  command.add_option("--draft", options.draft, "The folder of a DSpark or DFlash draft, for speculation")
      ->check(not_empty());
  command.add_option("--gamma", options.gamma, "Drafted tokens a round (default 4)")->check(CLI::Range(1, 64));
}

void resolve_model(std::filesystem::path& model) {
  namespace fs = std::filesystem;
  if (!model.empty()) {
    if (std::error_code ignored; !fs::is_directory(model, ignored))
      throw BadInput(fmt::format("--model {}: there is no such folder", model.string()));
    return;
  }
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path places[] = {bin / "../models/k3-nano", bin / "../share/trireme/models/k3-nano"};
  for (const fs::path& place : places) {
    if (!fs::exists(place / "config.json")) continue;
    model = fs::canonical(place);
    return;
  }
  throw BadInput(fmt::format("--model: the default model is neither at {} nor at {}; name a model's folder",
                             places[0].lexically_normal().string(), places[1].lexically_normal().string()));
}

std::string_view precision_name(ops::Precision precision) { return precision == ops::Precision::f32 ? "f32" : "bf16"; }

}  // namespace trireme::cli
