#include "cli/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/engine_flags.h"
#include "cli/output_path.h"
#include "engine/engine.h"
#include "serve/requests.h"
#include "text/answer.h"
#include "text/chat.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTokens = 200;

struct EvalArgs {
  engine::EngineOptions engine;
  std::string data;
  std::string ids_out;
  int64_t concurrency = 8;
  int64_t limit = 0;
  bool json = false;
};

struct Question {
  std::string id;
  std::string task;
  std::vector<int32_t> prompt;
  nlohmann::json answer;
};

// What came of one question; filled by the engine's thread.
struct Answer {
  std::vector<int32_t> ids;
  int64_t outputs = 0;  // events that brought tokens: one for the prefill, then one a decode step
  std::string error;
};

struct Tally {
  int64_t n = 0, correct = 0, rounds = 0, emitted = 0;
  void add(const Tally& other) {
    n += other.n;
    correct += other.correct;
    rounds += other.rounds;
    emitted += other.emitted;
  }
  // Emitted tokens per decode step, the first token of each answer left out since the prefill made it.
  double accept_length() const { return rounds > 0 ? static_cast<double>(emitted) / static_cast<double>(rounds) : 0; }
  double accuracy() const { return n > 0 ? static_cast<double>(correct) / static_cast<double>(n) : 0; }
};

using TypeTest = bool (Json::*)() const noexcept;

// The member `name`, or nullptr if it is absent or null. Throws BadInput if it is of another type.
const Json* member(const Json& object, const char* name, TypeTest test, const char* wanted) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return nullptr;
  if (!((*found).*test)()) throw BadInput(fmt::format("{}: must be {}, not {}", name, wanted, found->type_name()));
  return &*found;
}

std::string text_or(const Json& object, const char* name, const std::string& fallback) {
  const Json* value = member(object, name, &Json::is_string, "a string");
  return value == nullptr ? fallback : value->get<std::string>();
}

// The response format as the API has it, or its type alone with the schema beside it in response_schema.
void read_format(const Json& opts, text::ChatRequest& chat) {
  const Json* schema = member(opts, "response_schema", &Json::is_object, "an object");
  const auto format = opts.find("response_format");
  const bool brief = format != opts.end() && format->is_string();
  if (schema != nullptr && !(brief && *format == "json_schema"))
    throw BadInput("opts.response_schema: needs a response_format of \"json_schema\"");
  if (brief) {
    chat.response_format = Json{{"type", *format}};
    if (schema != nullptr) (*chat.response_format)["json_schema"] = {{"name", "answer"}, {"schema", *schema}};
  } else if (const Json* whole = member(opts, "response_format", &Json::is_object, "an object or its type")) {
    chat.response_format = *whole;
  }
}

// What a line says of its prompt, without messages if it has none.
text::ChatRequest read_chat(const Json& line) {
  text::ChatRequest chat;
  if (const Json* messages = member(line, "messages", &Json::is_array, "a list")) chat.messages = *messages;
  if (const Json* tools = member(line, "tools", &Json::is_array, "a list")) chat.tools = *tools;
  const Json* opts = member(line, "opts", &Json::is_object, "an object");
  if (opts == nullptr) return chat;
  for (const auto& [key, value] : opts->items()) {
    if (key != "tool_choice" && key != "response_format" && key != "response_schema") {
      throw BadInput(fmt::format("opts.{}: unknown; there are tool_choice, response_format and response_schema", key));
    }
  }
  chat.tool_choice = text_or(*opts, "tool_choice", chat.tool_choice);
  read_format(*opts, chat);
  return chat;
}

std::vector<int32_t> read_ids(const Json& list, const text::Tokenizer& tokenizer) {
  if (list.empty()) throw BadInput("prompt_ids: must have at least one token");
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(tokenizer.vocab_size())) {
      throw BadInput(
          fmt::format("prompt_ids: {} is not a token id from 0 to {}", id.dump(), tokenizer.vocab_size() - 1));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Question read_question(const std::string& text, int64_t number, const text::Tokenizer& tokenizer) {
  const Json line = text::parse_json(text, "line");
  if (!line.is_object()) throw BadInput(fmt::format("must be an object, not {}", line.type_name()));
  if (!line.contains("answer")) throw BadInput("answer: missing; must be a string or a list of tool calls");
  Question q;
  q.id = text_or(line, "id", std::to_string(number));
  q.task = text_or(line, "task", "all");
  q.answer = line["answer"];
  (void)text::matches({}, q.answer);  // refuses what is no answer
  const text::ChatRequest chat = read_chat(line);
  const Json* ids = member(line, "prompt_ids", &Json::is_array, "a list");
  if (ids != nullptr) q.prompt = read_ids(*ids, tokenizer);
  if (ids != nullptr && chat.messages.empty()) return q;
  if (chat.messages.empty()) throw BadInput("it has neither messages nor prompt_ids");
  std::vector<int32_t> encoded = text::encode_chat(tokenizer, chat);
  if (ids != nullptr && encoded != q.prompt)
    throw BadInput("prompt_ids: they are not the ids of messages, tools and opts; leave out one of the two");
  q.prompt = std::move(encoded);
  return q;
}

std::vector<Question> read_questions(const EvalArgs& args, const text::Tokenizer& tokenizer) {
  std::error_code ignored;
  std::ifstream in(args.data);
  if (!in || std::filesystem::is_directory(args.data, ignored))
    throw BadInput(fmt::format("{}: cannot be read; --data wants a file with one JSON object a line", args.data));
  std::vector<Question> questions;
  int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (text.empty()) continue;
    if (args.limit > 0 && static_cast<int64_t>(questions.size()) == args.limit) break;
    try {
      questions.push_back(read_question(text, number, tokenizer));
    } catch (const std::exception& e) {
      throw BadInput(fmt::format("{}:{}: {}", args.data, number, e.what()));
    }
  }
  if (questions.empty()) throw BadInput(fmt::format("{}: holds no questions", args.data));
  return questions;
}

engine::EngineOptions engine_options(const EvalArgs& args, const std::vector<Question>& questions) {
  engine::EngineOptions options = args.engine;
  size_t longest = 0;
  for (const Question& q : questions) longest = std::max(longest, q.prompt.size());
  options.max_running = args.concurrency;
  // Room for every running request at its longest, a page beyond for each: nothing is ever retracted.
  options.max_tokens = args.concurrency * (static_cast<int64_t>(longest) + kMaxTokens + 2 * ops::kPageTokens);
  options.max_queue = static_cast<int64_t>(questions.size());
  return options;
}

// Asks all questions, at most `concurrency` at once, greedily. Returns the seconds from the first to the last.
double ask(engine::Engine& engine, const std::vector<int32_t>& stop_ids, const std::vector<Question>& questions,
           std::vector<Answer>& answers) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < questions.size(); ++i) {
    engine::Request request;
    request.prompt = questions[i].prompt;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = kMaxTokens;
    request.sampling.stop_ids = stop_ids;
    request.on_output = [&answer = answers[i]](const engine::Output& output) {
      for (const engine::OutputToken& t : output.tokens) answer.ids.push_back(t.token);
      answer.outputs += output.tokens.empty() ? 0 : 1;
      answer.error += output.error;
    };
    try {
      engine.submit(std::move(request));
    } catch (const BadInput& e) {
      throw BadInput(fmt::format("question {}: {}", questions[i].id, e.what()));
    }
  }
  engine.wait_idle();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::map<std::string, Tally> judge(const std::vector<Question>& questions, const std::vector<Answer>& answers,
                                   const text::Tokenizer& tokenizer) {
  std::map<std::string, Tally> tasks;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& q = questions[i];
    const Answer& a = answers[i];
    if (!a.error.empty()) throw Failure(fmt::format("question {}: {}", q.id, a.error));
    Tally& task = tasks[q.task];
    ++task.n;
    task.rounds += a.outputs - 1;
    task.emitted += static_cast<int64_t>(a.ids.size()) - 1;
    const auto parsed = text::parse_answer(tokenizer, a.ids, text::OutputParser::Channel::think);
    if (text::matches(parsed, q.answer)) ++task.correct;
  }
  return tasks;
}

// Before the run, which may take hours.
std::ofstream open_ids(const std::string& path) {
  std::ofstream out(path);
  if (!out) throw BadInput(fmt::format("--ids {}: cannot be written", path));
  return out;
}

void write_ids(std::ofstream& out, const std::string& path, const std::vector<Question>& questions,
               const std::vector<Answer>& answers) {
  for (size_t i = 0; i < questions.size(); ++i) {
    out << Json{{"id", questions[i].id}, {"task", questions[i].task}, {"output_ids", answers[i].ids}}.dump() << '\n';
  }
  if (!out.flush()) throw Failure(fmt::format("{}: cannot be written", path));
}

Json report(const std::map<std::string, Tally>& tasks, const Tally& all, bool drafted, double tokens_per_s) {
  Json json;
  for (const auto& [name, t] : tasks) {
    json["tasks"][name] = {{"n", t.n}, {"correct", t.correct}, {"accuracy", t.accuracy()}, {"accept_length", nullptr}};
    if (drafted) json["tasks"][name]["accept_length"] = t.accept_length();
  }
  json["accept_length"] = nullptr;
  if (drafted) json["accept_length"] = all.accept_length();
  json["tokens_per_s"] = tokens_per_s;
  return json;
}

void print_table(const std::map<std::string, Tally>& tasks, const Tally& all, bool drafted, double tokens_per_s) {
  fmt::print("{:<16}{:>6}{:>9}{:>10}{:>15}\n", "task", "n", "correct", "accuracy", "accept length");
  const auto row = [&](const std::string& name, const Tally& t) {
    fmt::print("{:<16}{:>6}{:>9}{:>9.1f}%{:>15}\n", name, t.n, t.correct, 100 * t.accuracy(),
               drafted ? fmt::format("{:.3f}", t.accept_length()) : "-");
  };
  for (const auto& [name, t] : tasks) row(name, t);
  row("all", all);
  fmt::print("{:.1f} tokens/s\n", tokens_per_s);
}

void run(EvalArgs& args) {
  resolve_model(args.engine.model);
  const text::Tokenizer tokenizer = text::Tokenizer::load(args.engine.model);
  const std::vector<Question> questions = read_questions(args, tokenizer);
  std::ofstream ids;
  if (!args.ids_out.empty()) {
    refuse_to_overwrite("--ids", args.ids_out, {args.data, args.engine.model, args.engine.draft.value_or("")});
    ids = open_ids(args.ids_out);
  }
  std::vector<Answer> answers(questions.size());  // outlives the engine, whose thread fills it
  engine::Engine engine(engine_options(args, questions));
  const double seconds = ask(engine, serve::stop_ids(engine.config(), tokenizer), questions, answers);
  const std::map<std::string, Tally> tasks = judge(questions, answers, tokenizer);
  Tally all;
  for (const auto& [name, t] : tasks) all.add(t);
  if (!args.ids_out.empty()) write_ids(ids, args.ids_out, questions, answers);
  const double tokens_per_s = static_cast<double>(all.emitted + all.n) / seconds;
  const bool drafted = args.engine.draft.has_value();
  if (args.json) {
    fmt::print("{}\n", report(tasks, all, drafted, tokens_per_s).dump(2));
  } else {
    print_table(tasks, all, drafted, tokens_per_s);
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  auto args = std::make_shared<EvalArgs>();
  CLI::App* sub = app.add_subcommand("eval", "Accuracy, accept length and throughput on a set of questions (greedy)");
  add_engine_flags(*sub, args->engine);
  sub->add_option("--data", args->data, "Questions, one JSON object a line: messages or prompt_ids, and answer")
      ->required()
      ->check(not_empty());
  sub->add_option("--concurrency", args->concurrency, "Questions that run at once (default 8)")
      ->check(CLI::Range(1, 65536));
  sub->add_option("--limit", args->limit, "Only the first N questions; 0 (default): all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  sub->add_option("--ids", args->ids_out, "Write the generated ids of every question to this file")->check(not_empty());
  sub->add_flag("--json", args->json, "Print one JSON object");
  sub->callback([args] { run(*args); });
}

}  // namespace trireme::cli
