#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "text/answer.h"
#include "text/utf8.h"
#include "text_support.h"

namespace trireme::text {
namespace {

using namespace test;
using Ids = std::vector<TokenId>;
using Channel = OutputParser::Channel;

const Tokenizer& tokenizer() {
  static const Tokenizer one = byte_tokenizer({"你", "\xF0\x9F", "\x98\x80"});
  return one;
}

// Ids of a text in which < > | # are the markers open, close, sep, end of message and ~ another special token.
Ids ids_of(std::string_view text) {
  const SpecialTokens& special = tokenizer().special();
  Ids ids;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find_first_of("<>|#~", i), text.size());
    const Ids plain = tokenizer().encode(text.substr(i, end - i));
    ids.insert(ids.end(), plain.begin(), plain.end());
    if (end < text.size()) {
      const char c = text[end];
      ids.push_back(c == '<'   ? special.open
                    : c == '>' ? special.close
                    : c == '|' ? special.sep
                    : c == '#' ? special.end_of_msg
                               : special.pad);
    }
    i = end + 1;
  }
  return ids;
}

struct Read {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;  // index:name arguments
  bool finished = false;
  int reasoning_tokens = 0;
  bool operator==(const Read&) const = default;
};

Read read_ids(const Ids& ids, Channel start) {
  OutputParser parser(tokenizer(), start);
  Read out;
  const auto add = [&](const ParsedDelta& delta) {
    EXPECT_FALSE(first_invalid_byte(delta.reasoning + delta.content).has_value());
    out.reasoning += delta.reasoning;
    out.content += delta.content;
    for (const ToolCall& call : delta.tool_calls)
      out.calls.push_back(std::to_string(call.index) + ":" + call.name + " " + call.arguments);
  };
  for (const TokenId id : ids) {
    add(parser.push(id));
    out.reasoning_tokens += parser.in_reasoning() ? 1 : 0;
  }
  add(parser.flush());
  out.finished = parser.finished();
  EXPECT_EQ(parser.tool_calls(), static_cast<int>(out.calls.size()));
  return out;
}

Read read(std::string_view text, Channel start = Channel::think) { return read_ids(ids_of(text), start); }

using Calls = std::vector<std::string>;

TEST(OutputParser, NormalForm) {
  EXPECT_EQ(read("so 你>think|<response|hi>response|>message|#"), (Read{"so 你", "hi", {}, true, 4}));
  EXPECT_EQ(read("hi>response|>message|#", Channel::response), (Read{"", "hi", {}, true, 0}));
  EXPECT_EQ(read("r>think|<response|c>response|<tools|<call tool=\"f\" index=\"1\"|<argument key=\"city\" "
                 "type=\"string\"|Paris>argument|"
                 "<argument key=\"days\" type=\"number\"|1e2>argument|>call|<call tool=\"g\" "
                 "index=\"2\"|>call|>tools|>message|#"),
            (Read{"r", "c", {R"(0:f {"city": "Paris", "days": 1e2})", "1:g {}"}, true, 1}));
}

TEST(OutputParser, ThinkEndedByTheNextOpener) {
  EXPECT_EQ(read("r<response|c>response|>message|#"), (Read{"r", "c", {}, true, 1}));
  EXPECT_EQ(read("r<tools|<call tool=\"f\"|>call|>tools|>message|#"), (Read{"r", "", {"0:f {}"}, true, 1}));
}

TEST(OutputParser, ContentEndedByTheMessage) {
  EXPECT_EQ(read("r>think|<response|c>message|#"), (Read{"r", "c", {}, true, 1}));
  EXPECT_EQ(read("c>message|dropped#", Channel::response), (Read{"", "c", {}, true, 0}));
}

TEST(OutputParser, ToolsWithoutResponse) {
  EXPECT_EQ(read("r>think|<tools|<call tool=\"f\" index=\"1\"|>call|>tools|>message|#").calls, Calls{"0:f {}"});
}

TEST(OutputParser, EndWithoutAnyClose) {
  EXPECT_EQ(read("r#"), (Read{"r", "", {}, true, 1}));
  EXPECT_EQ(read("r>think|<response|c#after"), (Read{"r", "c", {}, true, 1}));
  Ids ids = ids_of("c");
  ids.push_back(tokenizer().special().eos);
  EXPECT_EQ(read_ids(ids, Channel::response), (Read{"", "c", {}, true, 0}));
}

TEST(OutputParser, JsonBlockPassesThrough) {
  EXPECT_EQ(read("<tools|<call tool=\"f\"|<json type=\"object\"|{\"a\":  1}>json|>call|>tools|#").calls,
            Calls{"0:f {\"a\":  1}"});
  EXPECT_EQ(read("<tools|<call tool=\"f\"|<json type=\"object\"|not json>json|>call|>tools|#").calls,
            Calls{"0:f not json"});
}

TEST(OutputParser, ArgumentTypes) {
  const auto one = [](const std::string& type, const std::string& text) {
    const Calls calls =
        read("<tools|<call tool=\"f\"|<argument key=\"k\" type=\"" + type + "\"|" + text + ">argument|>call|").calls;
    return calls.size() == 1 ? calls[0] : "none";
  };
  EXPECT_EQ(one("string", "12"), R"(0:f {"k": "12"})");
  EXPECT_EQ(one("string", ""), R"(0:f {"k": ""})");
  EXPECT_EQ(one("string", "a\"\n\\你"), R"(0:f {"k": "a\"\n\\你"})");
  EXPECT_EQ(one("number", "12"), R"(0:f {"k": 12})");
  EXPECT_EQ(one("number", " 1.50 "), R"(0:f {"k": 1.50})");
  EXPECT_EQ(one("number", "twelve"), R"(0:f {"k": "twelve"})");
  EXPECT_EQ(one("number", "NaN"), R"(0:f {"k": "NaN"})");
  EXPECT_EQ(one("number", ""), R"(0:f {"k": ""})");
  EXPECT_EQ(one("boolean", "true"), R"(0:f {"k": true})");
  EXPECT_EQ(one("null", "null"), R"(0:f {"k": null})");
  EXPECT_EQ(one("array", "[1,  {\"a\": 2}]"), R"(0:f {"k": [1,  {"a": 2}]})");
  EXPECT_EQ(one("array", "[1,"), R"(0:f {"k": "[1,"})");
  EXPECT_EQ(one("array", std::string(200, '[') + std::string(200, ']')),
            "0:f {\"k\": \"" + std::string(200, '[') + std::string(200, ']') + "\"}");
  EXPECT_EQ(one("array", std::string("[1]\0", 4)), R"(0:f {"k": "[1]\u0000"})");
  EXPECT_EQ(one("", "5"), R"(0:f {"k": 5})");
}

TEST(OutputParser, AttributesAreUnescapedQuotesFirst) {
  EXPECT_EQ(
      read("<tools|<call tool=\"a&quot;b&amp;c\"|<argument key=\"x&amp;quot;,\" type=\"string\"|v>argument|>call|")
          .calls,
      Calls{R"(0:a"b&c {"x&quot;,": "v"})"});
}

TEST(OutputParser, ALaterArgumentOfTheSameNameWins) {
  EXPECT_EQ(read("<tools|<call tool=\"f\"|<argument key=\"a\" type=\"number\"|1>argument|<argument key=\"b\" "
                 "type=\"number\"|2>argument|"
                 "<argument key=\"a\" type=\"number\"|3>argument|>call|")
                .calls,
            Calls{R"(0:f {"a": 3, "b": 2})"});
}

TEST(OutputParser, CutInsideACallKeepsWhatIsComplete) {
  const std::string first = "r>think|<tools|<call tool=\"f\"|<argument key=\"a\" type=\"number\"|1>argument|>call|";
  const std::string second =
      "<call tool=\"g\"|<argument key=\"b\" type=\"string\"|text>argument|>call|>tools|>message|#";
  const Ids whole = ids_of(first + second);
  const size_t complete = ids_of(first).size();
  for (size_t length = complete; length < whole.size(); ++length) {
    const Read got = read_ids(Ids(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)), Channel::think);
    const bool both =
        length >= ids_of(first + "<call tool=\"g\"|<argument key=\"b\" type=\"string\"|text>argument|>call|").size();
    EXPECT_EQ(got.calls.size(), both ? 2U : 1U) << length;
    EXPECT_EQ(got.content, "");
    EXPECT_EQ(got.reasoning, "r");
    EXPECT_FALSE(got.finished);
  }
}

TEST(OutputParser, ForgottenClosesInsideACall) {
  EXPECT_EQ(read("<tools|<call tool=\"f\"|<argument key=\"a\" type=\"number\"|1<argument key=\"b\" "
                 "type=\"number\"|2>call|>tools|#")
                .calls,
            Calls{R"(0:f {"a": 1, "b": 2})"});
  EXPECT_EQ(read("<tools|<call tool=\"f\"|<call tool=\"g\"|>call|>tools|#").calls, Calls{"0:g {}"});
  EXPECT_EQ(read("<tools|<call tool=\"f\"|>tools|>call|#").calls, Calls{});
  EXPECT_EQ(read("<tools|<call index=\"1\"|>call|>tools|#").calls, Calls{});
}

TEST(OutputParser, MarkersAndTagsNeverShow) {
  EXPECT_EQ(read("a<foo bar=\"x\"|b>foo|c|d~e", Channel::response).content, "abcde");
  EXPECT_EQ(read("a<response", Channel::response).content, "a");  // a tag that never ends
  EXPECT_EQ(read("a<<response|b", Channel::response).content, "ab");
  EXPECT_EQ(read("a>resp>response|b", Channel::response).content, "a");
  EXPECT_EQ(read("a>think|b", Channel::response).content, "ab");  // closes what is not open
  EXPECT_EQ(read("dropped<response|c>response|dropped", Channel::outside).content, "c");
  EXPECT_EQ(read("<tools|dropped<call tool=\"f\"|dropped<argument key=\"k\" "
                 "type=\"string\"|v~>argument|dropped>call|dropped>tools|")
                .content,
            "");
  EXPECT_EQ(read("<argument key=\"k\" type=\"string\"|x>argument|", Channel::response).content, "x");  // outside a call
}

TEST(OutputParser, IdsOutsideTheVocabularyAreDropped) {
  EXPECT_EQ(read_ids({-5, -1, 100'000, 2'000'000'000}, Channel::response), (Read{}));
}

TEST(OutputParser, CharactersStayWhole) {
  OutputParser parser(tokenizer(), Channel::response);
  EXPECT_EQ(parser.push(257).content, "");   // F0 9F
  EXPECT_EQ(parser.push(258).content, "😀");  // 98 80
  EXPECT_EQ(parser.push(257).content, "");
  EXPECT_EQ(parser.flush().content, "\uFFFD");
  EXPECT_EQ(parser.push(257).content, "");
  EXPECT_EQ(parser.push(tokenizer().special().close).content, "\uFFFD");  // nothing can follow in this channel
}

TEST(OutputParser, AnyStreamOfIdsIsSurvived) {
  std::mt19937 random(21);
  const std::vector<std::string> atoms = {"<",
                                          ">",
                                          "|",
                                          "#",
                                          "~",
                                          "think",
                                          "response",
                                          "tools",
                                          "message",
                                          "call tool=\"f\"",
                                          "argument key=\"k\" type=\"number\"",
                                          "json type=\"object\"",
                                          "text",
                                          "1",
                                          "你",
                                          "call",
                                          "argument"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += atoms[(random() % 3 != 0) ? random() % 3 : random() % atoms.size()];
    if (round % 2 == 0) std::erase(text, '#');
    const Read got = read(text, static_cast<Channel>(random() % 3));
    EXPECT_EQ((got.reasoning + got.content).find("<|"), std::string::npos);
    for (const std::string& call : got.calls) {
      const bool passed_through = text.find("json") != std::string::npos;
      EXPECT_TRUE(passed_through || nlohmann::json::accept(call.substr(call.find(" ") + 1))) << call;
    }
  }
}

TEST(Answer, ReferenceAnswersOfNanoAreRight) {
  const Tokenizer nano = nano_tokenizer();
  for (const auto& row : read_json_lines(source_path("tests/text/data/nano_prompts.jsonl"))) {
    const ParsedAnswer answer = parse_answer(nano, row["answer_ids"].get<Ids>(), Channel::think);
    EXPECT_TRUE(answer.finished);
    EXPECT_TRUE(matches(answer, nlohmann::json::parse(row["answer"].dump())))
        << row["id"] << " " << answer.content << answer.tool_calls;
  }
}

TEST(Answer, EveryReferenceAnswerReadsAsTheReferenceSays) {
  const std::string path = source_path("../shared/nano/reference.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const Tokenizer nano = nano_tokenizer();
  int answers = 0;
  for (const auto& row : read_json_lines(path)) {
    if (row.value("kind", "") != "greedy" || !row.contains("output_ids") || !row.contains("content")) continue;
    ++answers;
    const ParsedAnswer answer = parse_answer(nano, row["output_ids"].get<Ids>(), Channel::think);
    EXPECT_EQ(answer.reasoning, row["reasoning"].get<std::string>()) << row["id"];
    EXPECT_EQ(answer.content, row["content"].get<std::string>()) << row["id"];
    EXPECT_EQ(answer.tool_calls, nlohmann::json::parse(row["tool_calls"].dump())) << row["id"];
  }
  EXPECT_GT(answers, 0);
}

TEST(Answer, Matching) {
  ParsedAnswer answer;
  answer.content = "x";
  EXPECT_TRUE(matches(answer, "x"));
  EXPECT_FALSE(matches(answer, "y"));
  EXPECT_TRUE(matches(answer, nlohmann::json::array()));
  answer.tool_calls = nlohmann::json::parse(R"([{"name":"f","arguments":{"a":1,"b":"2"}}])");
  EXPECT_FALSE(matches(answer, "x"));
  EXPECT_TRUE(matches(answer, nlohmann::json::parse(R"([{"arguments":{"b":"2","a":1.0},"name":"f"}])")));
  EXPECT_FALSE(matches(answer, nlohmann::json::parse(R"([{"arguments":{"b":2,"a":1},"name":"f"}])")));
}

}  // namespace
}  // namespace trireme::text
