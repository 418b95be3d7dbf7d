#include "cli/engine_flags.h"

#include <map>
#include <string>

#include "cli/defaults.h"

namespace trireme::cli {

void add_engine_flags(CLI::App& command, engine::EngineOptions& options) {
  const std::map<std::string, ops::Precision> precisions = {{"f32", ops::Precision::f32},
                                                            {"bf16", ops::Precision::bf16}};
  command.add_option("--model", options.model, "The model's folder; the embedded k3-nano if absent");
  command.add_option("--precision", options.precision, "What activations are rounded to: bf16 (default) or f32")
      ->transform(CLI::CheckedTransformer(precisions));
  command.add_option("--isa", options.isa, "auto (default), or a backend that trireme doctor lists");
  command.add_option("--threads", options.threads, "Threads of the engine; 0 (default): one a core")
      ->check(CLI::Range(0, 1024));
  command.add_option("--draft", options.draft, "The folder of a DSpark or DFlash draft, for speculation");
  command.add_option("--gamma", options.gamma, "Drafted tokens a round (default 4)")->check(CLI::Range(1, 64));
}

void resolve_model(engine::EngineOptions& options) {
  if (options.model.empty()) options.model = default_model_dir();
}

}  // namespace trireme::cli
