// The whole server on an ephemeral port with k3-nano: answers, streams, errors, clients that leave.
#include "serve/server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/client.h"

namespace trireme::serve {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using testing::Answer;
using testing::Client;

constexpr const char* kQuestion = "Ben has 3 jars with 8 candles in each one. How many candles does Ben have now?";
constexpr const char* kChat = "/v1/chat/completions";

class ServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ServerOptions options;
    options.engine.model = TRIREME_SOURCE_DIR "/models/k3-nano";
    options.engine.threads = 1;  // more of them wait for each other when the machine is busy
    options.engine.max_running = 8;
    options.engine.max_queue = 16;
    options.engine.max_tokens = 16384;
    options.http.max_queued_bytes = 256 * 1024;
    server_ = std::make_unique<Server>(options);
  }
  static void TearDownTestSuite() { server_.reset(); }

  // Every test leaves all pages and slots behind.
  void TearDown() override {
    EXPECT_TRUE(eventually([] {
      const engine::EngineStats stats = server_->engine().stats();
      return stats.running == 0 && stats.waiting == 0 && stats.pages_free == stats.pages_total &&
             stats.slots_free == stats.slots_total;
    }));
  }

  // Waits up to 20 s.
  template <typename Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  static Json chat_body(Json more = Json::object()) {
    Json body = {{"model", "k3-nano"}, {"messages", {{{"role", "user"}, {"content", kQuestion}}}}, {"temperature", 0}};
    body.update(more);
    return body;
  }
  static Answer post(const std::string& path, const Json& body) {
    Client client(server_->port());
    return client.post(path, body.dump());
  }
  static Json post_ok(const std::string& path, const Json& body) {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body);
  }
  // The events of a stream, [DONE] checked and left out.
  static std::vector<Json> stream(const std::string& path, Json body) {
    body["stream"] = true;
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_TRUE(answer.complete);
    EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/event-stream"));
    std::vector<Json> events;
    std::istringstream lines(answer.body);
    bool done = false;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) continue;
      EXPECT_TRUE(line.starts_with("data: ")) << line;
      EXPECT_FALSE(done) << "after [DONE]: " << line;
      done = line == "data: [DONE]";
      if (!done) events.push_back(Json::parse(line.substr(6)));
    }
    EXPECT_TRUE(done);
    return events;
  }

  static std::unique_ptr<Server> server_;
};

std::unique_ptr<Server> ServerTest::server_;

TEST_F(ServerTest, AnswersChat) {
  const Json answer = post_ok(kChat, chat_body());
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "k3-nano");
  ASSERT_EQ(answer["choices"].size(), 1U);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "The answer is 24.");
  EXPECT_FALSE(choice["message"]["reasoning_content"].get<std::string>().empty());
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json& usage = answer["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 106);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_LT(usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]);
}

TEST_F(ServerTest, StreamEqualsWholeAnswer) {
  const Json whole = post_ok(kChat, chat_body());
  const std::vector<Json> events = stream(kChat, chat_body({{"stream_options", {{"include_usage", true}}}}));
  ASSERT_GE(events.size(), 4U);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  std::string content;
  std::string reasoning;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_TRUE(events[i].at("usage").is_null());
    const Json& choice = events[i]["choices"][0];
    EXPECT_EQ(choice["finish_reason"].is_null(), i + 2 != events.size());
    content += choice["delta"].value("content", "");
    reasoning += choice["delta"].value("reasoning_content", "");
  }
  EXPECT_EQ(content, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(reasoning, whole["choices"][0]["message"]["reasoning_content"]);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
}

TEST_F(ServerTest, ContinuousUsageGrows) {
  int64_t last = 0;
  for (const Json& event : stream(kChat, chat_body({{"stream_options", {{"continuous_usage_stats", true}}}}))) {
    const int64_t now = event["usage"]["completion_tokens"];
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, 5);
}

TEST_F(ServerTest, ThinkingCanBeOff) {
  for (const Json& off : {Json{{"thinking", {{"type", "disabled"}}}}, Json{{"reasoning_effort", "none"}},
                          Json{{"chat_template_kwargs", {{"thinking", false}}}}}) {
    const Json answer = post_ok(kChat, chat_body(off));
    EXPECT_TRUE(answer["choices"][0]["message"]["reasoning_content"].is_null()) << answer;
    EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    EXPECT_FALSE(answer["choices"][0]["message"]["content"].get<std::string>().empty());
  }
}

TEST_F(ServerTest, JoinsReasoningIfAsked) {
  const Json whole = post_ok(kChat, chat_body());
  const Json joined = post_ok(kChat, chat_body({{"separate_reasoning", false}}));
  const Json& message = whole["choices"][0]["message"];
  EXPECT_EQ(joined["choices"][0]["message"]["content"],
            message["reasoning_content"].get<std::string>() + message["content"].get<std::string>());
}

Json light_tools() {
  return Json::parse(
      R"([{"type": "function", "function": {"name": "send_table", "description": "Send the table.", "parameters": {
      "type": "object", "properties": {"minutes": {"type": "integer", "description": "Length in minutes"}, "price": {"type": "number",
      "description": "Highest price"}, "city": {"type": "string", "description": "City name"}}, "required": ["minutes", "price", "city"]}}},
      {"type": "function", "function": {"name": "close_light", "description": "Close the light.", "parameters": {"type": "object",
      "properties": {"minutes": {"type": "integer", "description": "Length in minutes"}, "count": {"type": "integer", "description":
      "How many"}}, "required": ["minutes", "count"]}}}, {"type": "function", "function": {"name": "play_song", "description":
      "Play the song.", "parameters": {"type": "object", "properties": {"day": {"type": "string", "description": "Day of the week"}},
      "required": ["day"]}}}])");
}

Json light_body(Json more = Json::object()) {
  Json body = {{"temperature", 0},
               {"tools", light_tools()},
               {"messages",
                {{{"role", "user"},
                  {"content",
                   "I want you to close the light for 20 minutes with count 1 and also close the light for 45 minutes "
                   "with count 22."}}}}};
  body.update(more);
  return body;
}

TEST_F(ServerTest, CallsTools) {
  const Json choice = post_ok(kChat, light_body())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null() || choice["message"]["content"].is_string());
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_EQ(calls[0]["function"]["name"], "close_light");
  EXPECT_EQ(Json::parse(calls[0]["function"]["arguments"].get<std::string>()), (Json{{"minutes", 20}, {"count", 1}}));
  EXPECT_EQ(Json::parse(calls[1]["function"]["arguments"].get<std::string>()), (Json{{"minutes", 45}, {"count", 22}}));

  std::vector<Json> streamed;
  std::string finish;
  for (const Json& event : stream(kChat, light_body())) {
    const Json& part = event["choices"][0];
    for (const Json& call : part["delta"].value("tool_calls", Json::array())) streamed.push_back(call);
    if (!part["finish_reason"].is_null()) finish = part["finish_reason"];
  }
  EXPECT_EQ(finish, "tool_calls");
  ASSERT_EQ(streamed.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(streamed[i]["index"], i);
    EXPECT_EQ(streamed[i]["function"], calls[i]["function"]);
  }
}

TEST_F(ServerTest, OneToolCallEndsTheAnswer) {
  const Json choice = post_ok(kChat, light_body({{"parallel_tool_calls", false}}))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1U);
  const Json none = post_ok(kChat, light_body({{"tool_choice", "none"}, {"max_tokens", 60}}))["choices"][0];
  EXPECT_FALSE(none["message"].contains("tool_calls"));
}

TEST_F(ServerTest, GivesLogprobsOfEveryToken) {
  const Json answer = post_ok(kChat, chat_body({{"logprobs", true}, {"top_logprobs", 2}}));
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), answer["usage"]["completion_tokens"].get<size_t>());
  for (const Json& entry : content) {
    EXPECT_LE(entry["logprob"], 0.0);
    ASSERT_EQ(entry["top_logprobs"].size(), 2U);
    EXPECT_EQ(entry["top_logprobs"][0]["token"], entry["token"]);  // greedy: the chosen one is the best
    EXPECT_GE(entry["top_logprobs"][0]["logprob"], entry["top_logprobs"][1]["logprob"]);
    EXPECT_FALSE(entry["bytes"].empty());
  }
  size_t streamed = 0;
  for (const Json& event : stream(kChat, chat_body({{"logprobs", true}}))) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (!logprobs.is_null()) streamed += logprobs["content"].size();
  }
  EXPECT_EQ(streamed, content.size());
}

TEST_F(ServerTest, StopStringsAndLimitsEndAnswers) {
  Json choice = post_ok(kChat, chat_body({{"stop", {"swer", "zzz"}}}))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "The an");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["matched_stop"], "swer");
  choice = post_ok(kChat, chat_body({{"max_tokens", 3}}))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json capped = post_ok(kChat, chat_body({{"max_tokens", 50}, {"max_completion_tokens", 2}}));
  EXPECT_EQ(capped["usage"]["completion_tokens"], 2);
  // A stop id of the request's own: its text is not shown.
  const Json tokens = post_ok("/tokenize", {{"prompt", " answer"}})["tokens"];
  choice =
      post_ok(kChat, chat_body({{"thinking", {{"type", "disabled"}}}, {"stop_token_ids", {tokens[0]}}}))["choices"][0];
  if (choice["matched_stop"] == tokens[0]) {
    EXPECT_EQ(choice["message"]["content"].get<std::string>().find("answer"), std::string::npos);
  }
  const Json forced = post_ok(kChat, chat_body({{"ignore_eos", true}, {"max_tokens", 80}}));
  EXPECT_EQ(forced["usage"]["completion_tokens"], 80);
}

TEST_F(ServerTest, SeedsRepeatAndChoicesDiffer) {
  const Json body = chat_body({{"temperature", 1.0},
                               {"top_p", 1.0},
                               {"seed", 7},
                               {"n", 4},
                               {"max_tokens", 40},
                               {"messages", {{{"role", "user"}, {"content", "Tell me a short story."}}}}});
  const Json first = post_ok(kChat, body);
  const Json second = post_ok(kChat, body);
  ASSERT_EQ(first["choices"].size(), 4U);
  EXPECT_EQ(first["choices"], second["choices"]);
  std::set<std::string> texts;
  for (const Json& choice : first["choices"]) texts.insert(choice["message"].dump());
  EXPECT_GT(texts.size(), 1U);
  Json one = body;
  one["n"] = 1;
  EXPECT_EQ(post_ok(kChat, one)["choices"][0], first["choices"][0]);
}

TEST_F(ServerTest, AnswersCompletions) {
  const Json answer =
      post_ok("/v1/completions", {{"prompt", "The answer is"}, {"temperature", 0}, {"max_tokens", 5}, {"logprobs", 2}});
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_LE(answer["usage"]["completion_tokens"], 5);
  const Json& logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), answer["usage"]["completion_tokens"].get<size_t>());
  EXPECT_EQ(logprobs["tokens"].size(), logprobs["token_logprobs"].size());
  EXPECT_EQ(logprobs["tokens"].size(), logprobs["text_offset"].size());
  EXPECT_GE(logprobs["top_logprobs"][0].size(), 2U);

  const Json tokens = post_ok("/tokenize", {{"prompt", "The answer is"}})["tokens"];
  const Json batch =
      post_ok("/v1/completions",
              {{"prompt", {tokens, tokens}}, {"temperature", 0}, {"max_tokens", 5}, {"n", 2}, {"echo", true}});
  ASSERT_EQ(batch["choices"].size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(batch["choices"][i]["index"], i);
    EXPECT_EQ(batch["choices"][i]["text"], "The answer is" + answer["choices"][0]["text"].get<std::string>());
  }
  std::string streamed;
  for (const Json& event : stream(
           "/v1/completions", {{"prompt", "The answer is"}, {"temperature", 0}, {"max_tokens", 5}, {"echo", true}})) {
    streamed += event["choices"][0]["text"];
  }
  EXPECT_EQ(streamed, batch["choices"][0]["text"]);
}

TEST_F(ServerTest, TokenizesBothWays) {
  const Json plain = post_ok("/tokenize", {{"prompt", "Hello 你好"}, {"return_token_strs", true}});
  EXPECT_EQ(plain["count"], plain["tokens"].size());
  EXPECT_EQ(plain["max_model_len"], 4096);
  EXPECT_EQ(plain["token_strs"].size(), plain["tokens"].size());
  EXPECT_EQ(post_ok("/detokenize", {{"tokens", plain["tokens"]}})["prompt"], "Hello 你好");
  Json chat = {{"messages", chat_body()["messages"]}};
  const Json whole = post_ok("/tokenize", chat);
  EXPECT_EQ(whole["count"], 106);
  chat["add_generation_prompt"] = false;
  const Json without = post_ok("/tokenize", chat);
  EXPECT_LT(without["count"], whole["count"]);
  EXPECT_EQ(without["tokens"].back(), 1794);
}

TEST_F(ServerTest, RefusesWithNumbersAndNames) {
  const auto error = [](const Json& body, int status, const std::string& path = kChat) {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, status) << answer.body;
    const Json json = Json::parse(answer.body);
    EXPECT_EQ(json["error"]["message"], json["message"]);
    EXPECT_EQ(json["code"], status);
    return json["error"];
  };
  EXPECT_EQ(error(chat_body({{"model", "gpt-9"}}), 404)["code"], "model_not_found");
  EXPECT_EQ(error(chat_body({{"temperature", "x"}}), 400)["param"], "temperature");
  const Json too_long = error(chat_body({{"max_tokens", 4000}}), 400);
  EXPECT_EQ(too_long["code"], "context_length_exceeded");
  for (const char* number : {"4000", "106", "4096", "3990"})
    EXPECT_NE(too_long["message"].get<std::string>().find(number), std::string::npos) << too_long;
  const Json long_prompt = error({{"prompt", std::vector<int>(5000, 5)}}, 400, "/v1/completions");
  EXPECT_NE(long_prompt["message"].get<std::string>().find("5000"), std::string::npos);
  EXPECT_EQ(error({{"prompt", ""}}, 400, "/v1/completions")["param"], "prompt");
  const Json role = error({{"messages", {{{"role", "emperor"}, {"content", "x"}}}}}, 400);
  EXPECT_NE(role["message"].get<std::string>().find("messages[0]"), std::string::npos) << role;
  const Json image = error(
      Json::parse(R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})"),
      400);
  EXPECT_NE(image["message"].get<std::string>().find("messages[0]"), std::string::npos) << image;
}

TEST_F(ServerTest, RoutesAndMethods) {
  Client client(server_->port());
  EXPECT_EQ(client.get("/v1/nothing").status, 404);
  EXPECT_EQ(client.get("/").status, 404);
  const Answer wrong = client.get(kChat);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(Json::parse(wrong.body)["code"], 405);
  client.send("DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_answer().headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_FALSE(Json::parse(client.get("/version").body)["version"].get<std::string>().empty());
  const Json models = Json::parse(client.get("/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "k3-nano");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(Json::parse(client.get("/v1/models/k3-nano").body)["object"], "model");
  EXPECT_EQ(client.get("/v1/models/other").status, 404);
}

TEST_F(ServerTest, MetricsCount) {
  post_ok(kChat, chat_body());
  Client client(server_->port());
  const Answer answer = client.get("/metrics");
  EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/plain"));
  for (const char* line :
       {"vllm:num_requests_running{model_name=\"k3-nano\"} 0", "sglang:num_queue_reqs{model_name=\"k3-nano\"} 0",
        "k3_mla_pages{model_name=\"k3-nano\",state=\"used\"} 0",
        "k3_kda_slots{model_name=\"k3-nano\",state=\"free\"} 8", "# TYPE vllm:generation_tokens_total counter",
        "vllm:time_to_first_token_seconds_count{model_name=\"k3-nano\"} ",
        "vllm:request_success_total{finished_reason=\"stop\",model_name=\"k3-nano\"} "}) {
    EXPECT_NE(answer.body.find(line), std::string::npos) << line << "\n" << answer.body;
  }
}

TEST_F(ServerTest, ClientsThatLeaveAreCancelled) {
  const Json forever = chat_body({{"ignore_eos", true}, {"stream", true}});
  std::vector<std::unique_ptr<Client>> clients;
  // Eight run, the others wait; some stream, some do not.
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    Json body = forever;
    if (i % 3 == 2) body["stream"] = false;
    clients.back()->send_post(kChat, body.dump());
  }
  ASSERT_TRUE(eventually([] {
    const auto stats = server_->engine().stats();
    return stats.running == 8 && stats.waiting == 4;
  }));
  for (size_t i = 0; i < clients.size(); ++i) {
    if (i % 2 == 0) {
      clients[i]->leave();
    } else {
      clients[i]->reset();
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(
      eventually([] { return server_->engine().stats().slots_free == 8 && server_->engine().stats().waiting == 0; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);  // none ran to its end
}

TEST_F(ServerTest, QueueThatIsFullAnswers429) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 24; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->send_post(kChat, chat_body({{"ignore_eos", true}}).dump());
  }
  ASSERT_TRUE(eventually([] { return server_->engine().stats().waiting == 16; }));
  const Answer answer = post(kChat, chat_body());
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  EXPECT_EQ(Json::parse(answer.body)["error"]["code"], "queue_full");
  // A request for several choices is refused as a whole.
  EXPECT_EQ(post(kChat, chat_body({{"n", 3}})).status, 429);
}

TEST_F(ServerTest, SlowReaderDoesNotHoldOthers) {
  // Log probabilities make the stream large; the client reads nothing of it.
  Client slow(server_->port(), 4096);
  slow.send_post(
      kChat,
      chat_body({{"ignore_eos", true}, {"stream", true}, {"logprobs", true}, {"top_logprobs", 20}, {"n", 4}}).dump());
  ASSERT_TRUE(eventually([] { return server_->engine().stats().running > 0; }));
  EXPECT_EQ(post_ok(kChat, chat_body())["choices"][0]["message"]["content"], "The answer is 24.");
  slow.leave();
}

TEST(ServerAlone, AsksForItsKey) {
  ServerOptions options;
  options.engine.model = TRIREME_SOURCE_DIR "/models/k3-nano";
  options.engine.threads = 1;
  options.engine.max_running = 1;
  options.engine.max_tokens = 4096;
  options.api_key = "secret";
  options.model_name = "my-model";
  Server server(options);
  Client client(server.port());
  EXPECT_EQ(client.get("/v1/models").status, 401);
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secre\r\n").status, 401);
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secrets\r\n").status, 401);
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer \r\n").status, 401);
  EXPECT_EQ(client.get("/v1/models", "Authorization: secret\r\n").status, 401);
  for (const char* wrong : {"Bearersecret", "Bearer", "Bear secret", "Basic secret"}) {
    EXPECT_EQ(client.get("/v1/models", "Authorization: " + std::string(wrong) + "\r\n").status, 401) << wrong;
  }
  for (const char* right : {"bearer secret", "BEARER   secret", "Bearer secret "}) {
    EXPECT_EQ(client.get("/v1/models", "Authorization: " + std::string(right) + "\r\n").status, 200) << right;
  }
  const Answer models = client.get("/v1/models", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(Json::parse(models.body)["data"][0]["id"], "my-model");
  for (const char* open : {"/health", "/metrics", "/version"}) EXPECT_EQ(client.get(open).status, 200) << open;
  Client poster(server.port());
  EXPECT_EQ(poster.post(kChat, "{}").status, 401);
}

TEST(ServerAlone, FindsItsModelByAPathThatIsEncoded) {
  ServerOptions options;
  options.engine.model = TRIREME_SOURCE_DIR "/models/k3-nano";
  options.engine.threads = 1;
  options.engine.max_running = 2;
  options.engine.max_queue = 1;
  options.engine.max_tokens = 4096;
  options.model_name = "a/b 100%é";
  Server server(options);
  Client client(server.port());
  for (const char* path : {"a%2Fb%20100%25%C3%A9", "a/b%20100%%c3%a9"}) {
    const Answer found = client.get("/v1/models/" + std::string(path));
    EXPECT_EQ(found.status, 200) << path;
    EXPECT_EQ(Json::parse(found.body)["id"], options.model_name);
  }
  const Answer wrong = client.get("/v1/models/%ff%2");
  EXPECT_EQ(wrong.status, 404);
  EXPECT_TRUE(Json::accept(wrong.body)) << wrong.body;

  // Two can run and one can wait: more answers than that can never be given, and fewer always.
  Json body = {{"prompt", "a"}, {"max_tokens", 1}, {"n", 4}};
  const Answer many = client.post("/v1/completions", body.dump());
  EXPECT_EQ(many.status, 400) << many.body;
  EXPECT_EQ(Json::parse(many.body)["error"]["param"], "n");
  body["n"] = 3;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(client.post("/v1/completions", body.dump()).status, 200);
}

TEST(ServerAlone, ItsNameMustBeText) {
  ServerOptions options;
  options.engine.model = TRIREME_SOURCE_DIR "/models/k3-nano";
  options.model_name = "a\xff";
  try {
    const Server server(options);
    FAIL() << "it was served";
  } catch (const BadInput& error) {
    EXPECT_STREQ(error.what(), "--served-model-name: not valid UTF-8 at byte 1");
  }
}

TEST(ServerAlone, StopEndsWhatRuns) {
  ServerOptions options;
  options.engine.model = TRIREME_SOURCE_DIR "/models/k3-nano";
  options.engine.threads = 1;
  options.engine.max_running = 2;
  options.engine.max_tokens = 8192;
  auto server = std::make_unique<Server>(options);
  const Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"ignore_eos", true}};
  Client whole(server->port());
  whole.send_post(kChat, body.dump());
  Client streamed(server->port());
  Json stream_body = body;
  stream_body["stream"] = true;
  streamed.send_post(kChat, stream_body.dump());
  ASSERT_TRUE(streamed.read_until("assistant").has_value());
  for (int i = 0; i < 4000 && server->engine().stats().running < 2; ++i) std::this_thread::sleep_for(5ms);
  ASSERT_EQ(server->engine().stats().running, 2);
  const auto begin = std::chrono::steady_clock::now();
  server->stop(50ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(whole.read_answer().status, 503);
  EXPECT_TRUE(streamed.read_until("\"error\"").has_value());
  EXPECT_TRUE(streamed.read_until("[DONE]").has_value());
  server.reset();
}

}  // namespace
}  // namespace trireme::serve
