// Flags that several commands take.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "ops/ops.h"

namespace trireme::cli {

// Refuses an empty value, which is what an unset variable of a shell leaves: it must not mean the default.
CLI::Validator not_empty();

// --model, --precision, --isa and --threads, for every command that computes. What they hold now is their default; the
// variables must outlive the parsing. An absent --model leaves `model` empty, for resolve_model().
void add_compute_flags(CLI::App& command, std::filesystem::path& model, ops::Precision& precision, std::string& isa,
                       int& threads);

// The same and --draft, --gamma, for commands with an engine.
void add_engine_flags(CLI::App& command, engine::EngineOptions& options);

// If no model was named: the folder of the embedded one, k3-nano, beside the build (<executable's folder>/../models) or
// installed (<executable's folder>/../share/trireme/models). Throws BadInput that names both places if it is in
// neither, or the folder that was named if it is none.
void resolve_model(std::filesystem::path& model);

// "f32" or "bf16".
std::string_view precision_name(ops::Precision precision);

}  // namespace trireme::cli
