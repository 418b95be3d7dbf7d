// The flags that every command with an engine takes.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/engine.h"

namespace trireme::cli {

// --model, --precision, --isa, --threads, --draft, --gamma; they fill `options`, which must outlive the parsing.
// Without --model the model is the embedded one once resolve_model() is called.
void add_engine_flags(CLI::App& command, engine::EngineOptions& options);

// Puts the embedded model in if none was named. Throws BadInput if that is not found.
void resolve_model(engine::EngineOptions& options);

}  // namespace trireme::cli
