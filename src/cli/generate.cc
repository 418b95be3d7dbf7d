#include "cli/generate.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "checkpoint/config.h"
#include "cli/engine_flags.h"
#include "engine/engine.h"
#include "serve/chat_fields.h"
#include "serve/decoder.h"
#include "serve/requests.h"
#include "text/chat.h"

namespace trireme::cli {
namespace {

struct GenerateFlags {
  engine::EngineOptions engine;
  std::string prompt;
  std::string chat_file;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint64_t> seed;
  bool no_thinking = false;
  std::optional<std::string> effort;
};

// The engine's events, handed from its thread to this one.
class Events {
 public:
  void put(const engine::Output& output) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(output);
    more_.notify_one();
  }
  engine::Output take() {
    std::unique_lock lock(mutex_);
    more_.wait(lock, [this] { return !queue_.empty(); });
    engine::Output output = std::move(queue_.front());
    queue_.pop_front();
    return output;
  }

 private:
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<engine::Output> queue_;
};

std::string read_all(const std::string& file) {
  std::ifstream opened;
  if (file != "-") {
    std::error_code ignored;
    if (std::filesystem::is_directory(file, ignored))
      throw BadInput(fmt::format("--chat {}: it is a folder; it must be a file", file));
    opened.open(file, std::ios::binary);
    if (!opened) throw BadInput(fmt::format("--chat {}: cannot be read", file));
  }
  std::istream& in = file == "-" ? std::cin : opened;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A list of messages, or an object like the body of /v1/chat/completions.
text::ChatRequest read_chat(const GenerateFlags& flags) {
  text::ChatRequest chat;
  if (flags.chat_file.empty()) {
    chat.messages.push_back({{"role", "user"}, {"content", flags.prompt}});
  } else {
    const std::string text = read_all(flags.chat_file);
    if (text.starts_with("\xEF\xBB\xBF"))
      throw BadInput(fmt::format("--chat {}: begins with a byte order mark; save it as plain UTF-8", flags.chat_file));
    try {
      serve::Json body = serve::parse_value(text);
      if (body.is_array()) body = serve::Json::object({{"messages", std::move(body)}});
      if (!body.is_object()) {
        throw BadInput(fmt::format("--chat {}: must be a list of messages or an object with messages, not {}",
                                   flags.chat_file, serve::kind_of(body)));
      }
      chat = serve::parse_chat_fields(serve::Fields(body, ""));
    } catch (const serve::ApiError& error) {
      throw BadInput(fmt::format("--chat {}: {}", flags.chat_file, error.what()));
    }
  }
  chat.thinking = chat.thinking && !flags.no_thinking;
  chat.thinking_effort = flags.effort.value_or(chat.thinking_effort);
  return chat;
}

// Prints reasoning dimmed where that is possible, the answer plainly, calls as JSON lines.
class Printer {
 public:
  void print(const text::ParsedDelta& delta) {
    if (!delta.reasoning.empty()) switch_to(true);
    write(delta.reasoning);
    if (!delta.content.empty()) switch_to(false);
    write(delta.content);
    for (const text::ToolCall& call : delta.tool_calls) {
      switch_to(false);
      write(fmt::format("{}{}({})", began_ ? "\n" : "", call.name, call.arguments));
    }
    flush();
  }
  void end() {
    if (reasoning_ && terminal_) write("\033[0m");
    write("\n");
    flush();
  }

 private:
  // A reader that is gone or a full disk ends the work.
  static void flush() {
    if (std::fflush(stdout) != 0) throw Failure("standard output cannot be written");
  }
  void switch_to(bool reasoning) {
    if (reasoning == reasoning_) return;
    reasoning_ = reasoning;
    if (terminal_) write(reasoning ? "\033[2m" : "\033[0m");
    if (!reasoning) write("\n\n");
    began_ = false;
  }
  void write(const std::string& text) {
    if (text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    began_ = true;
  }

  const bool terminal_ = isatty(STDOUT_FILENO) != 0;
  bool reasoning_ = false;
  bool began_ = false;
};

// Needs no loaded model, so that what is wrong is told before it is.
engine::Request make_request(const GenerateFlags& flags, const text::Tokenizer& tokenizer,
                             const text::ChatRequest& chat) {
  const checkpoint::ModelConfig config = checkpoint::read_config(flags.engine.model);
  engine::Request request;
  request.prompt = text::encode_chat(tokenizer, chat);
  const int64_t left = config.max_positions - static_cast<int64_t>(request.prompt.size());
  if (left < 1) {
    throw BadInput(fmt::format("the prompt has {} tokens, which leaves no room in a context of {} tokens",
                               request.prompt.size(), config.max_positions));
  }
  const serve::SamplingDefaults defaults = serve::read_sampling_defaults(flags.engine.model);
  request.sampling.max_tokens = flags.max_tokens.value_or(left);
  if (request.sampling.max_tokens > left) {
    throw BadInput(fmt::format("--max-tokens {}: the prompt has {} tokens and the context {}, so at most {} are left",
                               request.sampling.max_tokens, request.prompt.size(), config.max_positions, left));
  }
  request.sampling.temperature = static_cast<float>(flags.temperature.value_or(defaults.temperature));
  request.sampling.top_p = static_cast<float>(flags.top_p.value_or(defaults.top_p));
  request.sampling.seed = flags.seed.value_or(serve::random_seed());
  request.sampling.stop_ids = serve::stop_ids(config, tokenizer);
  return request;
}

// CLI11 would wrap a negative number and cut a large one.
std::string not_whole(const std::string& text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? "" : fmt::format("{} is not a whole number from 0 to 2^64 - 1", text);
}

void run(GenerateFlags& flags) {
  spdlog::set_level(spdlog::level::warn);  // the terminal belongs to the answer
  resolve_model(flags.engine.model);
  const text::ChatRequest chat = read_chat(flags);
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.engine.model);
  engine::Request request = make_request(flags, tokenizer, chat);
  flags.engine.max_running = 1;
  flags.engine.max_tokens = static_cast<int64_t>(request.prompt.size()) + request.sampling.max_tokens;
  Events events;  // outlives the engine, whose thread fills it
  engine::Engine engine(flags.engine);
  request.on_output = [&events](const engine::Output& output) { events.put(output); };
  engine.submit(std::move(request));

  serve::DecoderOptions options;
  options.channel = text::chat_stub_channel(chat);
  serve::Decoder decoder(tokenizer, options);
  Printer printer;
  for (;;) {
    const engine::Output output = events.take();
    for (const engine::OutputToken& token : output.tokens) printer.print(decoder.push(token.token));
    if (!output.finish) continue;
    printer.print(decoder.flush());
    printer.end();
    if (*output.finish == engine::FinishReason::error) throw Failure(output.error);
    if (*output.finish == engine::FinishReason::length)
      fmt::print(stderr, "trireme: cut off by --max-tokens or the context\n");
    return;
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Print one answer as it comes");
  const auto flags = std::make_shared<GenerateFlags>();
  add_engine_flags(*command, flags->engine);
  CLI::Option_group* source = command->add_option_group("input");
  source->add_option("--prompt", flags->prompt, "One user message");
  source
      ->add_option("--chat", flags->chat_file,
                   "A JSON file of messages, or of a chat completion's body (-: standard input)")
      ->check(not_empty());
  source->require_option(1);
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens to generate; what the context leaves if absent")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--temperature", flags->temperature, "0: always the likeliest token; the model's own if absent")
      ->check(CLI::Range(0.0, 2.0));
  command->add_option("--top-p", flags->top_p, "Share of the probability to sample from; the model's own if absent")
      ->check(CLI::Range(1e-6, 1.0));
  command->add_option("--seed", flags->seed, "The same seed gives the same answer")
      ->check(CLI::Validator(not_whole, ""));
  command->add_flag("--no-thinking", flags->no_thinking, "Answer at once");
  command
      ->add_option("--effort", flags->effort,
                   "How much to think: low, medium, high or max (default max, or what --chat says)")
      ->check(CLI::IsMember({"low", "medium", "high", "max"}));
  command->callback([flags] { run(*flags); });
}

}  // namespace trireme::cli
