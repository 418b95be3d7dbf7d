#include "cli/logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "cli/deployment_flags.h"
#include "cli/engine_flags.h"
#include "cli/output_path.h"
#include "cli/token_file.h"
#include "comm/local.h"
#include "comm/mpi.h"
#include "engine/pools.h"
#include "engine/rank_logits.h"
#include "layout/deployment.h"
#include "ledger/ledger.h"
#include "model/model.h"
#include "ops/select.h"

namespace trireme::cli {
namespace {

struct LogitsFlags {
  std::filesystem::path model;
  std::filesystem::path tokens;
  std::filesystem::path output;
  ops::Precision precision = ops::Precision::f32;
  std::string isa = "auto";
  int threads = 0;
  int64_t chunk = 512;
  int64_t greedy = 0;
  std::optional<int64_t> trace;
  std::string deployment;  // file or name; empty: one rank
  std::string instance;    // of the deployment; empty: its only one
  bool check_collectives = false;
};

// Tensors of the output file, which own their bytes.
class OutputFile {
 public:
  void floats(const std::string& name, std::vector<int64_t> shape, std::span<const float> values) {
    add(name, DType::f32, std::move(shape), std::as_bytes(values));
  }
  void ids(const std::string& name, std::vector<int64_t> shape, std::span<const int32_t> values) {
    add(name, DType::i32, std::move(shape), std::as_bytes(values));
  }
  void write(const std::filesystem::path& path) const {
    std::vector<checkpoint::TensorToWrite> list;
    for (const Entry& e : entries_) list.push_back({e.name, e.dtype, e.shape, e.bytes});
    checkpoint::write_safetensors(path, list);
  }

 private:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
    entries_.push_back({name, dtype, std::move(shape), {bytes.begin(), bytes.end()}});
  }
  std::vector<Entry> entries_;
};

// Runs one sequence at a time through pools that hold just one.
class Runner {
 public:
  Runner(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, int64_t longest)
      : sizes_{cache::pages_for(longest), 1},
        account_(ledger::plan_memory(checkpoint, ops, sizes_)),
        pools_(checkpoint.config(), ops.precision(), sizes_, account_),
        model_(checkpoint, ops, account_),
        pages_(static_cast<size_t>(sizes_.pages)) {
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  void restart() { position_ = 0; }

  // Feeds the next tokens of the sequence in pieces of at most `chunk` and writes their logits, row after row, to
  // `logits`.
  void feed(std::span<const int32_t> tokens, int64_t chunk, float* logits, model::Trace* trace = nullptr) {
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < count; begin += chunk) {
      const int64_t rows = std::min(chunk, count - begin);
      model::Batch batch;
      batch.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + rows);
      batch.segments.push_back({rows, position_, 0, pages_, true, {}});
      for (int64_t r = 0; r < rows; ++r) batch.logit_rows.push_back(r);
      const model::ForwardOutput out = model_.forward(batch, pools_.views(), trace);
      std::copy_n(out.logits.data(), rows * out.logits.cols(), logits + begin * out.logits.cols());
      position_ += rows;
    }
  }

 private:
  ledger::PoolSizes sizes_;
  ledger::Account account_;
  engine::Pools pools_;
  model::Model model_;
  std::vector<int32_t> pages_;
  int64_t position_ = 0;
};

// Writes the trace under the golden files' names. Of the recurrent states only those of `state_layers` if a golden file
// named some.
void write_trace(const model::Trace& trace, int64_t prompt, const std::vector<int32_t>& state_layers, OutputFile& out) {
  const auto number = static_cast<int32_t>(prompt);
  out.ids("trace.prompt", {1}, {&number, 1});
  for (const auto& [name, tensor] : trace.tensors) {
    if (name == "kda_state") continue;
    if (tensor.integer) {
      const std::vector<int32_t> ids(tensor.values.begin(), tensor.values.end());
      out.ids("trace." + name, tensor.shape, ids);
    } else {
      out.floats("trace." + name, tensor.shape, tensor.values);
    }
  }
  const auto found = trace.tensors.find("kda_state");
  if (found == trace.tensors.end()) return;
  const std::vector<float>& layers = trace.tensors.at("kda_layers").values;
  std::vector<int32_t> kept = state_layers;
  if (kept.empty()) kept.assign(layers.begin(), layers.end());
  std::vector<int64_t> shape = found->second.shape;
  const size_t each = found->second.values.size() / layers.size();
  std::vector<float> values;
  for (const int32_t layer : kept) {
    const auto at = std::find(layers.begin(), layers.end(), static_cast<float>(layer));
    if (at == layers.end())
      throw BadInput(fmt::format("trace.kda_state_layers names layer {}, which is not a KDA layer", layer));
    const auto begin = found->second.values.begin() + (at - layers.begin()) * static_cast<int64_t>(each);
    values.insert(values.end(), begin, begin + static_cast<int64_t>(each));
  }
  shape.front() = static_cast<int64_t>(kept.size());
  out.ids("trace.kda_state_layers", {shape.front()}, kept);
  out.floats("trace.kda_state", shape, values);
}

// Decodes `count` tokens, each the best of the row before (the first among equals).
void decode(Runner& runner, int64_t count, std::vector<float> row, engine::PromptLogits& result) {
  while (static_cast<int64_t>(result.greedy.size()) < count) {
    result.greedy_logits.insert(result.greedy_logits.end(), row.begin(), row.end());
    result.greedy.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    if (static_cast<int64_t>(result.greedy.size()) < count) runner.feed({&result.greedy.back(), 1}, 1, row.data());
  }
}

void write_prompt(int64_t prompt, const engine::PromptLogits& result, int64_t vocab, OutputFile& out) {
  const auto rows = static_cast<int64_t>(result.logits.size()) / vocab;
  out.floats(fmt::format("prompt.{}.logits", prompt), {rows, vocab}, result.logits);
  const auto greedy = static_cast<int64_t>(result.greedy.size());
  if (greedy == 0) return;
  out.ids(fmt::format("prompt.{}.greedy_tokens", prompt), {greedy}, result.greedy);
  out.floats(fmt::format("prompt.{}.greedy_logits", prompt), {greedy, vocab}, result.greedy_logits);
}

void run_prompt(Runner& runner, const LogitsFlags& flags, const TokenFile& file, int64_t prompt, int64_t vocab,
                OutputFile& out) {
  const std::vector<int32_t>& tokens = file.prompts.at(prompt);
  const auto length = static_cast<int64_t>(tokens.size());
  const bool traced = flags.trace == prompt;
  model::Trace trace;
  engine::PromptLogits result;
  result.logits.resize(static_cast<size_t>(length * vocab));
  runner.restart();
  runner.feed(tokens, traced ? length : flags.chunk, result.logits.data(), traced ? &trace : nullptr);
  if (traced) write_trace(trace, prompt, file.state_layers, out);
  decode(runner, flags.greedy, {result.logits.end() - vocab, result.logits.end()}, result);
  write_prompt(prompt, result, vocab, out);
}

// The program of one rank; rank 0 writes the file.
void run_rank(const LogitsFlags& flags, const TokenFile& file, const layout::Instance& instance, int64_t longest,
              comm::World& world) {
  engine::RankOptions options;
  options.isa = flags.isa;
  options.precision = flags.precision;
  options.threads = flags.threads > 0 ? flags.threads : 1;  // ranks share the machine's cores
  options.tokens = longest;
  engine::Rank rank(flags.model, instance, options, world);
  const auto results = engine::prompt_logits(rank, file.prompts, flags.chunk, flags.greedy);
  if (world.rank() != 0) return;
  OutputFile out;
  for (const auto& [number, result] : results) write_prompt(number, result, rank.config().vocab, out);
  out.write(flags.output);
}

void run_deployment(const LogitsFlags& flags, const TokenFile& file, const layout::Instance& instance,
                    int64_t longest) {
  const auto body = [&](comm::World& world) { run_rank(flags, file, instance, longest, world); };
  if (comm::under_mpi()) {
    if (comm::run_mpi(flags.check_collectives, body) != 0) throw Failure("a rank failed");
    return;
  }
  comm::LocalOptions options;
  options.checked = flags.check_collectives;
  options.ranks_per_host = static_cast<int>(instance.ranks_per_host);
  comm::run_local(static_cast<int>(instance.ranks()), options, body);
}

void run(LogitsFlags& flags) {
  std::optional<layout::Instance> instance;
  if (!flags.deployment.empty()) {
    if (flags.trace) throw BadInput("--trace needs the whole model on one rank; leave --deployment out");
    const layout::Deployment deployment = layout::read_deployment(flags.deployment);
    if (flags.model.empty() && deployment.model) flags.model = *deployment.model;
    instance = choose_instance(deployment, flags.instance);
  }
  resolve_model(flags.model);
  refuse_to_overwrite("--output", flags.output, {flags.tokens, flags.model, flags.deployment});
  const std::filesystem::path folder = flags.output.has_parent_path() ? flags.output.parent_path() : ".";
  const bool other = std::filesystem::exists(flags.output) && !std::filesystem::is_regular_file(flags.output);
  if (!std::filesystem::is_directory(folder) || other) {
    throw BadInput(fmt::format("--output {}: must be a file in a folder that exists", flags.output.string()));
  }
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(flags.model);
  const checkpoint::ModelConfig& config = checkpoint.config();
  const TokenFile file = read_token_file(flags.tokens, config.vocab);
  if (flags.trace && !file.prompts.contains(*flags.trace)) {
    throw BadInput(fmt::format("--trace {}: {} has no such prompt; it has {}, the last is number {}", *flags.trace,
                               flags.tokens.string(), file.prompts.size(), file.prompts.rbegin()->first));
  }
  int64_t longest = 0;
  for (const auto& [number, tokens] : file.prompts) {
    const int64_t need = static_cast<int64_t>(tokens.size()) + flags.greedy;
    if (need > config.max_positions) {
      throw BadInput(fmt::format("prompt {}: {} tokens and {} greedy ones exceed the model's context of {}", number,
                                 tokens.size(), flags.greedy, config.max_positions));
    }
    longest = std::max(longest, need);
  }
  if (instance) {
    run_deployment(flags, file, layout::resolve(*instance, config), longest);
    return;
  }
  ThreadPool pool(thread_count(flags.threads));
  const std::unique_ptr<ops::Ops> ops = ops::make_ops(flags.isa, flags.precision, pool);
  Runner runner(checkpoint, *ops, longest);
  OutputFile out;
  for (const auto& [number, tokens] : file.prompts) run_prompt(runner, flags, file, number, config.vocab, out);
  out.write(flags.output);
}

}  // namespace

void add_logits(CLI::App& app) {
  CLI::App* command = app.add_subcommand("logits", "Write the logits at every position of given token sequences");
  const auto flags = std::make_shared<LogitsFlags>();
  add_compute_flags(*command, flags->model, flags->precision, flags->isa, flags->threads);
  command->add_option("--tokens", flags->tokens, "Safetensors with prompt.<i>.tokens, or a JSON list of lists of ids")
      ->required()
      ->check(not_empty());
  command->add_option("--output", flags->output, "The safetensors file to write")->required()->check(not_empty());
  command->add_option("--greedy", flags->greedy, "Tokens to decode after each prompt")->check(CLI::Range(0, 1 << 20));
  command->add_option("--trace", flags->trace, "Number of the prompt whose inside is written too; it runs in one piece")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command->add_option("--chunk", flags->chunk, "Tokens of a prompt a pass takes at most (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--deployment", flags->deployment, "Deployment file or built-in name: run on its ranks")
      ->check(not_empty());
  command->add_option("--instance", flags->instance, "Which instance of the deployment")->check(not_empty());
  command->add_flag("--check-collectives", flags->check_collectives,
                    "Compare every collective's shape between the ranks before it runs");
  command->callback([flags] { run(*flags); });
}

}  // namespace trireme::cli
