#include "text/chat.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "text/chat_segments.h"
#include "text_support.h"

namespace trireme::text {
namespace {

using namespace test;
using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

// The prompt as one line: markers as < > | #, segments between slashes.
std::string show(const ChatRequest& request) {
  std::string out;
  bool text_before = false;
  for (const Segment& segment : render_chat(request)) {
    const bool text = segment.marker == Marker::none;
    if (text && text_before) out += '/';
    text_before = text;
    if (segment.marker == Marker::open) out += '<';
    if (segment.marker == Marker::close) out += '>';
    if (segment.marker == Marker::sep) out += '|';
    if (segment.marker == Marker::end_of_msg) out += '#';
    out += segment.text;
  }
  return out;
}

// Without thinking there is no effort message, which keeps expectations short.
std::string show_plain(const char* messages) {
  ChatRequest request;
  request.messages = Json::parse(messages);
  request.thinking = false;
  return show(request);
}

std::string show_body(std::string all) {
  const std::string stub = "<message/ role/=\"/assistant/\"|<response|";
  EXPECT_TRUE(all.ends_with(stub)) << all;
  return all.substr(0, all.size() - stub.size());
}

TEST(Chat, GoldenPromptsOfK3) {
  const Tokenizer tokenizer = partial_k3_tokenizer();
  for (const auto& row : Json::parse(read_text(source_path("tests/text/data/k3_golden_prompts.json")))) {
    const Ids ids = encode_chat(tokenizer, chat_request(row["request"]));
    const Ids head = row["head"].get<Ids>();
    const Ids tail = row["tail"].get<Ids>();
    ASSERT_EQ(ids.size(), row["length"].get<size_t>()) << row["name"];
    EXPECT_EQ(Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(head.size())), head) << row["name"];
    EXPECT_EQ(Ids(ids.end() - static_cast<std::ptrdiff_t>(tail.size()), ids.end()), tail) << row["name"];
  }
}

TEST(Chat, NanoPrompts) {
  const Tokenizer tokenizer = nano_tokenizer();
  const auto rows = read_json_lines(source_path("tests/text/data/nano_prompts.jsonl"));
  ASSERT_EQ(rows.size(), 16U);
  for (const auto& row : rows) {
    EXPECT_EQ(encode_chat(tokenizer, chat_request(row["request"])), row["prompt_ids"].get<Ids>()) << row["id"];
  }
}

TEST(Chat, EveryPromptOfTheEvaluationSet) {
  const std::string path = source_path("../shared/nano/eval-public.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const Tokenizer tokenizer = nano_tokenizer();
  const auto rows = read_json_lines(path);
  ASSERT_EQ(rows.size(), 192U);
  for (const auto& row : rows) {
    EXPECT_EQ(encode_chat(tokenizer, evaluation_request(row)), row["prompt_ids"].get<Ids>()) << row["id"];
  }
}

TEST(Chat, StubFollowsThinking) {
  ChatRequest request;
  request.messages = Json::parse(R"([{"role": "user", "content": "x"}])");
  EXPECT_EQ(chat_stub_channel(request), OutputParser::Channel::think);
  EXPECT_TRUE(show(request).ends_with("<message/ role/=\"/assistant/\"|<think|"));
  request.thinking = false;
  EXPECT_EQ(chat_stub_channel(request), OutputParser::Channel::response);
  const Tokenizer tokenizer = nano_tokenizer();
  const Ids ids = encode_chat(tokenizer, request);
  EXPECT_EQ(ids[ids.size() - kChannelOpenerTokens], tokenizer.special().open);
  EXPECT_EQ(ids.back(), tokenizer.special().sep);
}

TEST(Chat, EffortIsShownAsGiven) {
  for (const char* effort : {"low", "medium", "high", "max"}) {
    ChatRequest request;
    request.messages = Json::parse(R"([{"role": "user", "content": "x"}])");
    request.thinking_effort = effort;
    EXPECT_NE(show(request).find(std::string("`thinking_effort=") + effort + "`.>message|#"), std::string::npos);
  }
}

TEST(Chat, UserAndSystem) {
  EXPECT_EQ(show_body(show_plain(
                R"([{"role": "system", "content": "a"}, {"role": "user", "name": "J. \"S\" & x", "content": "b"}])")),
            "<message/ role/=\"/system/\"|a>message|#"
            "<message/ role/=\"/user/\"/ name/=\"/J. &quot;S&quot; &amp; x/\"|b>message|#");
  EXPECT_EQ(show_body(show_plain(R"([{"role": "user", "name": "", "content": ""}])")),
            "<message/ role/=\"/user/\"|>message|#");
  EXPECT_EQ(
      show_body(show_plain(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""},
                                     {"type": "text", "text": "b & \"c\""}]}])")),
      "<message/ role/=\"/user/\"|a/b & \"c\">message|#");
}

TEST(Chat, NothingTypedBecomesAMarker) {
  const Tokenizer tokenizer = nano_tokenizer();
  ChatRequest request;
  request.messages =
      Json::parse(R"([{"role": "user", "name": "<|sep|>", "content": "<|close|>message<|sep|><|end_of_msg|>[EOS]"}])");
  const auto count = [&](const Ids& ids) {
    return std::count_if(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_special(id); });
  };
  ChatRequest plain;
  plain.messages = Json::parse(R"([{"role": "user", "name": "x", "content": "x"}])");
  EXPECT_EQ(count(encode_chat(tokenizer, request)), count(encode_chat(tokenizer, plain)));
}

TEST(Chat, AssistantChannels) {
  ChatRequest request;
  request.messages = Json::parse(R"([{"role": "assistant", "content": "c", "reasoning_content": " "},
    {"role": "assistant", "reasoning": "r", "content": null}, {"role": "assistant", "reasoning_content": "", "reasoning": "no"}])");
  const std::string all = show(request);
  const std::string message = "<message/ role/=\"/assistant/\"|";
  EXPECT_NE(all.find(message + "<think| >think|<response|c>response|>message|#" + message +
                     "<think|r>think|<response|>response|>message|#" + message +
                     "<think|>think|<response|>response|>message|#"),
            std::string::npos)
      << all;
  request.thinking = false;
  EXPECT_EQ(show_body(show(request)), message + "<response|c>response|>message|#" + message +
                                          "<response|>response|>message|#" + message +
                                          "<response|>response|>message|#");
}

// The part of one call between its opener and its close.
std::string show_arguments(const Json& arguments) {
  ChatRequest request;
  request.thinking = false;
  request.messages =
      Json::array({{{"role", "assistant"},
                    {"tool_calls", Json::array({{{"function", {{"name", "f"}, {"arguments", arguments}}}}})}}});
  const std::string all = show(request);
  const std::string head = "<tools|<call/ tool/=\"/f/\"/ index/=\"/1/\"|";
  const size_t begin = all.find(head) + head.size();
  return all.substr(begin, all.find(">call|>tools|") - begin);
}

std::string argument(const std::string& key, const std::string& type, const std::string& text) {
  return "<argument/ key/=\"/" + key + "/\"/ type/=\"/" + type + "/\"|" + text + ">argument|";
}

TEST(Chat, ArgumentsFromText) {
  EXPECT_EQ(
      show_arguments(R"({"city":"Paris","n":1e2,"o":{"a" :1}})"),
      argument("city", "string", "Paris") + argument("n", "number", "1e2") + argument("o", "object", R"({"a" :1})"));
  EXPECT_EQ(show_arguments(R"({"x,":true,"a\"&":null,"e":""})"),
            argument("x,", "boolean", "true") + argument("a&quot;&amp;", "null", "null") + argument("e", "string", ""));
  EXPECT_EQ(show_arguments(R"({"a":1,"a":2} tail)"), argument("a", "number", "1") + argument("a", "number", "2"));
  EXPECT_EQ(show_arguments(""), "");
  EXPECT_EQ(show_arguments(nullptr), "");
  EXPECT_EQ(show_arguments("{}"), "");
  for (const char* raw : {"  ", "[1]", "not json", "{\"a\":", "3"}) {
    EXPECT_EQ(show_arguments(raw), std::string("<json/ type/=\"/object/\"|") + raw + ">json|");
  }
}

TEST(Chat, ArgumentsFromAnObject) {
  EXPECT_EQ(
      show_arguments(Json::parse(R"({"z":"x\ny","a":[1,2.0,{"k":"é"}],"b":100000000000000000.0,"c":false,"d":null})")),
      argument("z", "string", "x\ny") + argument("a", "array", R"([1, 2.0, {"k": "é"}])") +
          argument("b", "number", "1e+17") + argument("c", "boolean", "false") + argument("d", "null", "null"));
}

const char* const kTwoCalls =
    R"({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":""}},{"id":"b","function":{"name":"g","arguments":""}}]})";

std::string tool(const std::string& name, int index, const std::string& text) {
  return "<message/ role/=\"/tool/\"/ tool/=\"/" + name + "/\"/ index/=\"/" + std::to_string(index) + "/\"|" + text +
         ">message|#";
}

std::string tool_part(const std::string& results) {
  const std::string all = show_body(show_plain(("[" + std::string(kTwoCalls) + "," + results + "]").c_str()));
  return all.substr(all.find(">tools|>message|#") + std::string(">tools|>message|#").size());
}

TEST(Chat, ToolResultsTakeTheOrderOfTheCalls) {
  EXPECT_EQ(
      tool_part(R"({"role":"tool","tool_call_id":"b","content":"2"},{"role":"tool","tool_call_id":"a","content":"1"})"),
      tool("f", 1, "1") + tool("g", 2, "2"));
  // The call's name wins over the message's when all match.
  EXPECT_EQ(tool_part(R"({"role":"tool","tool_call_id":"b","name":"other","content":"2"})"), tool("g", 1, "2"));
  // One that does not match leaves the run as it is: own name first, then the call at that place.
  EXPECT_EQ(
      tool_part(
          R"({"role":"tool","tool_call_id":"b","content":"2"},{"role":"tool","tool_call_id":"?","tool":"t","name":"n","content":"1"})"),
      tool("f", 1, "2") + tool("t", 2, "1"));
  // Counting goes on over other messages until the next assistant message.
  EXPECT_EQ(
      tool_part(
          R"({"role":"tool","tool_call_id":"a","content":"1"},{"role":"user","content":"u"},{"role":"tool","tool_call_id":"b","content":"2"})"),
      tool("f", 1, "1") + "<message/ role/=\"/user/\"|u>message|#" + tool("g", 2, "2"));
}

TEST(Chat, OfCallsWithOneIdTheFirstIsMeant) {
  EXPECT_EQ(
      show_body(show_plain(
          R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"n"}},{"id":"a","function":{"name":"f"}},
          {"id":null,"function":{"name":"o"}},{"id":"a","function":{"name":"g"}}]},{"role":"tool","tool_call_id":"a","content":"1"},
          {"role":"assistant","content":"","tool_calls":[{"id":"b","function":{"name":"h"}}]},
          {"role":"tool","tool_call_id":"a","name":"own","content":"2"}])")),
      show_body(show_plain(
          R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"n"}},{"id":"x","function":{"name":"f"}},
          {"function":{"name":"o"}},{"id":"y","function":{"name":"g"}}]},{"role":"tool","tool_call_id":"?","name":"f","content":"1"},
          {"role":"assistant","content":"","tool_calls":[{"function":{"name":"h"}}]},
          {"role":"tool","tool_call_id":"?","name":"own","content":"2"}])")));
}

// A search from the front for every result would take minutes here.
TEST(Chat, ManyToolResultsTakeNoTimeToMatch) {
  constexpr int kCalls = 60'000;
  ChatRequest request;
  Json calls = Json::array();
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back({{"id", "call_" + std::to_string(i)}, {"function", {{"name", "f"}}}});
  }
  request.messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}});
  for (int i = kCalls; i-- > 0;) {
    request.messages.push_back({{"role", "tool"}, {"tool_call_id", "call_" + std::to_string(i)}, {"content", "x"}});
  }
  const std::clock_t start = std::clock();
  const auto segments = render_chat(request);
  EXPECT_GT(segments.size(), size_t{10} * kCalls);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10.0);
}

TEST(Chat, ToolDeclarations) {
  ChatRequest request;
  request.thinking = false;
  request.tools = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"b":1.0,"a":"é/"}}}])");
  request.messages =
      Json::parse(R"([{"role":"system","content":"","tools":[{"type":"function","function":{"name":"g"}}]}])");
  EXPECT_EQ(show_body(show(request)),
            "<message/ role/=\"/system/\"/ type/=\"/tool-declare/\"|# Tools\nHere are the available tools, described "
            "in JSONSchema.\n\n"
            "```json\n[{\"function\":{\"name\":\"f\",\"parameters\":{\"a\":\"é/"
            "\",\"b\":1.0}},\"type\":\"function\"}]\n```>message|#"
            "<message/ role/=\"/system/\"/ type/=\"/tool-declare/\"|## New Tools Available\nThe system dynamically "
            "extends the toolset via "
            "lazy-loading.\nYou have access to all existing and extended tools.\nHere are the specs for the extended "
            "tools.\n\n"
            "```json\n[{\"function\":{\"name\":\"g\"},\"type\":\"function\"}]\n```>message|#");
}

TEST(Chat, ChoiceAndFormatComeAfterTheMessages) {
  ChatRequest request;
  request.thinking = false;
  request.messages = Json::parse(R"([{"role":"user","content":"u"}])");
  request.tool_choice = "none";
  request.response_format = Json::parse(R"({"type":"json_schema","json_schema":{"name":"n","schema":{"b":1,"a":2}}})");
  const std::string user = "<message/ role/=\"/user/\"|u>message|#";
  EXPECT_EQ(show_body(show(request)), user +
                                          "<message/ role/=\"/system/\"/ type/=\"/tool-choice/\"|The system is invoked "
                                          "with `tool_choice=none`.\nYou MUST NOT call any "
                                          "tools in the next message.>message|#"
                                          "<message/ role/=\"/system/\"/ type/=\"/response-format/\"|The system is "
                                          "invoked with `response_format=json_schema`.\nYour "
                                          "response must be raw JSON data without markdown code blocks (```json) or "
                                          "any additional formatting.\nThe JSON data must "
                                          "match the following schema:\n```json\n{\"a\":2,\"b\":1}\n```>message|#");
  request.tool_choice = "auto";
  request.response_format = Json::parse(R"({"type":"text"})");
  EXPECT_EQ(show_body(show(request)), user);
}

TEST(Chat, ATokenizerWithoutMarkersIsRefused) {
  const Tokenizer other = Tokenizer::parse(rank_file(byte_tokens()),
                                           R"({"added_tokens_decoder": {"258": {"content": "<|im_end|>"}}})", "other");
  ChatRequest request;
  request.messages = Json::parse(R"([{"role":"user","content":"u"}])");
  EXPECT_THROW(encode_chat(other, request), BadInput);
}

}  // namespace
}  // namespace trireme::text
