// The endpoints on an engine, without HTTP between: what they answer when the engine fails, and small contexts.
#include "serve/api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "engine/scheduler.h"
#include "serve/decoder.h"

namespace trireme::serve {
namespace {

constexpr const char* kModel = TRIREME_SOURCE_DIR "/models/k3-nano";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletion = "/v1/completions";

engine::EngineOptions small_engine() {
  engine::EngineOptions options;
  options.model = kModel;
  options.threads = 1;
  options.max_running = 4;
  options.max_tokens = 4096;
  return options;
}

engine::SamplingParams greedy(int64_t max_tokens) {
  engine::SamplingParams sampling;
  sampling.temperature = 0;
  sampling.max_tokens = max_tokens;
  return sampling;
}

class Rig {
 public:
  explicit Rig(const engine::EngineOptions& options, engine::Engine::Probe probe = nullptr)
      : tokenizer(text::Tokenizer::load(kModel)),
        metrics("m"),
        workers(1),
        engine(options, std::move(probe)),
        api({"m", "", {}}, {engine, tokenizer, metrics, workers, live}) {}
  ~Rig() { workers.stop(); }

  // The answer to a POST, or without a body to a GET.
  HttpResponse ask(const std::string& path, const Json& body = nullptr) {
    std::mutex mutex;
    std::condition_variable woken;
    bool more = false;
    const auto exchange = std::make_shared<Exchange>(
        [&] {
          const std::lock_guard lock(mutex);
          more = true;
          woken.notify_one();
        },
        size_t{1} << 20);
    api.handle({body.is_null() ? "GET" : "POST", path, "", body.is_null() ? "" : body.dump()}, exchange);
    std::unique_lock lock(mutex);
    woken.wait(lock, [&] { return more; });
    lock.unlock();
    return exchange->take().response.value();
  }
  Json ask_ok(const std::string& path, const Json& body) {
    const HttpResponse response = ask(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }

  const text::Tokenizer tokenizer;
  Metrics metrics;
  Workers workers;
  LiveGenerations live;
  engine::Engine engine;
  Api api;
};

std::string error_code(const HttpResponse& response) { return Json::parse(response.body)["error"]["code"]; }

TEST(Api, AStepThatFailsIsA500AndTheNextRequestRuns) {
  std::atomic<bool> fail = true;
  Rig rig(small_engine(), [&](auto) {
    if (fail.exchange(false)) throw std::runtime_error("out of luck");
  });
  const Json body = {{"prompt", {5, 6}}, {"max_tokens", 3}};
  const HttpResponse failed = rig.ask(kCompletion, body);
  EXPECT_EQ(failed.status, 500);
  EXPECT_NE(failed.body.find("out of luck"), std::string::npos) << failed.body;
  EXPECT_EQ(rig.ask("/health").status, 200);
  rig.ask_ok(kCompletion, body);
}

TEST(Api, ADeadEngineIsDownAtOnce) {
  std::atomic<bool> spoilt = false;
  // Two requests at once that own a page twice: neither can end, which the engine cannot survive.
  Rig rig(small_engine(), [&](std::span<const engine::Sequence* const> sequences) {
    if (sequences.size() < 2 || spoilt.exchange(true)) return;
    for (const engine::Sequence* s : sequences) {
      auto& pages = const_cast<engine::Sequence*>(s)->pages;
      pages.push_back(pages.front());
    }
  });
  EXPECT_EQ(rig.ask("/health").status, 200);
  const Json body = {{"prompt", {5, 6}}, {"n", 2}, {"max_tokens", 50}, {"ignore_eos", true}};
  const HttpResponse failed = rig.ask(kCompletion, body);
  EXPECT_EQ(failed.status, 500);
  EXPECT_NE(failed.body.find("cannot go on"), std::string::npos) << failed.body;
  rig.engine.wait_idle();
  const HttpResponse health = rig.ask("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(error_code(health), "engine_down");
  const HttpResponse refused = rig.ask(kCompletion, body);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(error_code(refused), "engine_down");
}

// With no queue at all nobody waits when a request is refused.
TEST(Api, AFullQueueIsToldFromADeadEngine) {
  engine::EngineOptions options = small_engine();
  options.max_running = 1;
  options.max_queue = 0;
  Rig rig(options);
  const engine::RequestId running = rig.engine.submit({{5, 6}, greedy(4000), 0, [](const engine::Output&) {}});
  while (rig.engine.stats().running < 1) std::this_thread::yield();
  const HttpResponse refused = rig.ask(kCompletion, {{"prompt", {5, 6}}});
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(error_code(refused), "queue_full");
  rig.engine.cancel(running);
}

TEST(Api, CompletionsWithoutMaxTokensTakeWhatFits) {
  engine::EngineOptions options = small_engine();
  options.max_running = 1;
  options.max_tokens = 128;
  Rig rig(options);
  Json body = {{"prompt", std::vector<int>(120, 5)}, {"temperature", 0}, {"ignore_eos", true}};
  EXPECT_EQ(rig.ask_ok(kCompletion, body)["usage"]["completion_tokens"], 8);
  body["prompt"] = std::vector<int>(20, 5);
  EXPECT_EQ(rig.ask_ok(kCompletion, body)["usage"]["completion_tokens"], kCompletionTokens);
  body["min_tokens"] = 20;
  EXPECT_EQ(rig.ask_ok(kCompletion, body)["usage"]["completion_tokens"], 20);
}

TEST(Api, TooManyTokensAreNamedAsTheyWereSent) {
  Rig rig(small_engine());
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    const Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {field, 1'000'000}};
    const Json error = Json::parse(rig.ask(kChat, body).body)["error"];
    EXPECT_EQ(error["param"], field);
    EXPECT_TRUE(error["message"].get<std::string>().starts_with(std::string(field) + ": 1000000 more")) << error;
  }
}

Json call_body() {
  return Json::parse(
      R"({"temperature": 0, "parallel_tool_calls": false, "tools": [{"type": "function", "function": {"name": "close_light",
      "description": "Close the light.", "parameters": {"type": "object", "properties": {"minutes": {"type": "integer",
      "description": "Length in minutes"}, "count": {"type": "integer", "description": "How many"}},
      "required": ["minutes", "count"]}}}, {"type": "function", "function": {"name": "play_song", "description":
      "Play the song.", "parameters": {"type": "object", "properties": {"day": {"type": "string", "description":
      "Day of the week"}}, "required": ["day"]}}}],
      "messages": [{"role": "user", "content": "I want you to close the light for 20 minutes with count 1."}]})");
}

// The batches in which the engine emits the greedy answer to `body`.
std::vector<std::vector<int32_t>> batches_of(Rig& rig, const Json& body) {
  const auto request = parse_chat_completion(body.dump(), {2048, {}});
  std::vector<std::vector<int32_t>> batches;
  engine::SamplingParams sampling = greedy(200);
  sampling.stop_ids = stop_ids(rig.engine.config(), rig.tokenizer);
  rig.engine.submit({text::encode_chat(rig.tokenizer, request.chat), sampling, 0, [&](const engine::Output& output) {
                       batches.emplace_back();
                       for (const auto& t : output.tokens) batches.back().push_back(t.token);
                     }});
  rig.engine.wait_idle();
  return batches;
}

// A token that comes in one batch with the end of the call, behind it, and nowhere before.
std::optional<int32_t> token_behind_the_call(const Rig& rig, const std::vector<std::vector<int32_t>>& batches) {
  DecoderOptions options;
  options.channel = text::OutputParser::Channel::think;
  options.one_tool_call = true;
  Decoder decoder(rig.tokenizer, options);
  std::set<int32_t> before;
  for (const auto& batch : batches) {
    for (const int32_t token : batch) {
      if (decoder.ended() && !before.contains(token)) return token;
      decoder.push(token);
      before.insert(token);
    }
    if (decoder.ended()) break;
  }
  return std::nullopt;
}

// With speculation a stop id may come in the same step as the end of the answer, behind it: it did not end the answer.
TEST(Api, AStopIdBehindTheEndIsNotWhatMatched) {
  int tried = 0;
  for (const int64_t gamma : {7, 6, 5, 4, 3}) {
    engine::EngineOptions options = small_engine();
    options.draft = TRIREME_SOURCE_DIR "/models/k3-nano-dspark";
    options.gamma = gamma;
    Rig rig(options);
    Json body = call_body();
    const auto behind = token_behind_the_call(rig, batches_of(rig, body));
    if (!behind) continue;
    ++tried;
    body["stop_token_ids"] = {*behind};
    const Json choice = rig.ask_ok(kChat, body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    EXPECT_TRUE(choice["matched_stop"].is_null()) << choice;
  }
  EXPECT_GT(tried, 0) << "no step had tokens behind the end of the call";
}

}  // namespace
}  // namespace trireme::serve
