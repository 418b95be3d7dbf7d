#include "text/json_text.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace trireme::text {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonText, FloatsAsPythonWritesThem) {
  const std::vector<std::pair<double, std::string>> cases = {{0.0, "0.0"},
                                                             {-0.0, "-0.0"},
                                                             {1.0, "1.0"},
                                                             {100.0, "100.0"},
                                                             {0.1, "0.1"},
                                                             {-2.5, "-2.5"},
                                                             {1e15, "1000000000000000.0"},
                                                             {1e16, "1e+16"},
                                                             {1.5e16, "1.5e+16"},
                                                             {0.0001, "0.0001"},
                                                             {0.00001, "1e-05"},
                                                             {1.25e-7, "1.25e-07"},
                                                             {1e100, "1e+100"},
                                                             {5e-324, "5e-324"},
                                                             {123.456, "123.456"},
                                                             {9007199254740993.0, "9007199254740992.0"},
                                                             {1.7976931348623157e308, "1.7976931348623157e+308"},
                                                             {0.00012345, "0.00012345"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float(value), text);
}

TEST(JsonText, CanonicalSortsKeysByCodePointAndKeepsArrays) {
  const Json value =
      Json::parse(R"({"b": [3, 1, {"z": null, "a": true}], "a": {"é": 1, "z": 2, "Z": 3, "😀": 4, "～": 5}, "": 0.5})");
  EXPECT_EQ(canonical_json(value), R"({"":0.5,"a":{"Z":3,"z":2,"é":1,"～":5,"😀":4},"b":[3,1,{"a":true,"z":null}]})");
}

TEST(JsonText, SpacedKeepsOrder) {
  EXPECT_EQ(spaced_json(Json::parse(R"({"b":[1,2],"a":{"x":"é"},"c":[],"d":{}})")),
            R"({"b": [1, 2], "a": {"x": "é"}, "c": [], "d": {}})");
}

TEST(JsonText, Numbers) {
  EXPECT_EQ(canonical_json(Json::parse("[18446744073709551615,-9223372036854775808,1e2,-0.0]")),
            "[18446744073709551615,-9223372036854775808,100.0,-0.0]");
}

TEST(JsonText, StringsEscapeOnlyWhatMust) {
  EXPECT_EQ(json_quote(std::string("a\"\\/\n\r\t\b\f\x01\x1f\x7f é\u2028", 18)),
            "\"a\\\"\\\\/\\n\\r\\t\\b\\f\\u0001\\u001f\x7f é\u2028\"");
}

TEST(JsonText, DepthIsLimitedBeforeAValueExists) {
  EXPECT_EQ(json_text_depth("1"), 0);
  EXPECT_EQ(json_text_depth("[[1],{}]"), 2);
  EXPECT_EQ(json_text_depth(R"(["[[[\"[["])"), 1);
  EXPECT_NO_THROW(parse_json(std::string(128, '[') + std::string(128, ']'), "body"));
  try {
    parse_json(std::string(10'000'000, '['), "body");
    FAIL();
  } catch (const BadInput& error) {
    EXPECT_STREQ(error.what(), "body: JSON nested more than 128 deep");
  }
  EXPECT_THROW(parse_json("{\"a\":}", "body"), BadInput);
  EXPECT_THROW(parse_json("\"\xFF\"", "body"), BadInput);
  EXPECT_THROW(parse_json("", "body"), BadInput);
  const std::string nul("[1]\0 anything", 14);
  EXPECT_THROW(parse_json(nul, "body"), BadInput);
  EXPECT_FALSE(is_json(nul));
  EXPECT_FALSE(is_json(std::string(129, '[') + std::string(129, ']')));
  EXPECT_TRUE(is_json(" [1] "));
}

TEST(JsonText, AValueMadeTooDeepIsNotFollowed) {
  Json value = 1;
  for (int i = 0; i < 129; ++i) value = Json::array({std::move(value)});
  EXPECT_THROW(canonical_json(value), BadInput);
}

using Members = std::vector<std::array<std::string, 3>>;

std::optional<Members> scan(std::string_view text) {
  const auto found = scan_arguments(text);
  if (!found) return std::nullopt;
  Members out;
  for (const ArgumentText& one : *found) out.push_back({one.key, one.type, one.text});
  return out;
}

TEST(ScanArguments, LiteralsStayAsWritten) {
  EXPECT_EQ(
      scan(
          R"({"a": 1e2, "b": "x\ny\u00e9", "c": [1,  2 , {"k":"v"}], "d": {"e" : null}, "f": true, "g": null, "h": -0.50})"),
      (Members{{"a", "number", "1e2"},
               {"b", "string", "x\nyé"},
               {"c", "array", R"([1,  2 , {"k":"v"}])"},
               {"d", "object", R"({"e" : null})"},
               {"f", "boolean", "true"},
               {"g", "null", "null"},
               {"h", "number", "-0.50"}}));
}

TEST(ScanArguments, Oddities) {
  EXPECT_EQ(scan("{}"), Members{});
  EXPECT_EQ(scan(" \n{ } trailing"), Members{});
  EXPECT_EQ(scan(R"({"a":1} and more {)"), (Members{{"a", "number", "1"}}));
  EXPECT_EQ(scan(R"({"a":1,"a":2})"), (Members{{"a", "number", "1"}, {"a", "number", "2"}}));
  EXPECT_EQ(scan("{\"a\":\"x\ny\t\"}"), (Members{{"a", "string", "x\ny\t"}}));
  EXPECT_EQ(scan(R"({"a":"\ud83d\ude00"})"), (Members{{"a", "string", "😀"}}));
  EXPECT_EQ(scan(R"({"a":"\ud83dx\ude00"})"), (Members{{"a", "string", "\uFFFDx\uFFFD"}}));
  EXPECT_EQ(scan(R"({"a":"\ud83d\ud83d\ude00"})"), (Members{{"a", "string", "\uFFFD😀"}}));
  EXPECT_EQ(scan(R"({"a":NaN,"b":-Infinity})"), (Members{{"a", "number", "NaN"}, {"b", "number", "-Infinity"}}));
  EXPECT_EQ(scan(R"({"\u0041\"":""})"), (Members{{"A\"", "string", ""}}));
}

TEST(ScanArguments, Malformed) {
  for (const char* text : {"",
                           " ",
                           "null",
                           "[1]",
                           "\"x\"",
                           "1",
                           "{",
                           "{\"a\"",
                           "{\"a\":",
                           "{\"a\":1",
                           "{\"a\":1,",
                           "{\"a\":1,}",
                           "{,}",
                           "{a:1}",
                           "{\"a\" 1}",
                           "{\"a\":01}",
                           "{\"a\":1.}",
                           "{\"a\":.5}",
                           "{\"a\":+1}",
                           "{\"a\":1e}",
                           "{\"a\":-}",
                           "{\"a\":tru}",
                           "{\"a\":\"\\x\"}",
                           "{\"a\":\"\\u12\"}",
                           "{\"a\":\"\\u12g4\"}",
                           "{\"a\":\"b}",
                           "{\"a\":[1,]}",
                           "{\"a\":[1}",
                           "{\"a\":{\"b\"}}",
                           "{\"a\":{\"b\":1]}",
                           "{\"a\":1 \"b\":2}",
                           "{'a':1}",
                           "{\"a\":\"\\ud83d\\u1\"}"}) {
    EXPECT_EQ(scan(text), std::nullopt) << text;
  }
}

TEST(ScanArguments, DepthNeedsNoStack) {
  const std::string deep = std::string(2'000'000, '[') + std::string(2'000'000, ']');
  const auto found = scan("{\"a\":" + deep + "}");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ((*found)[0][2], deep);
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(scan(objects), std::nullopt);
}

}  // namespace
}  // namespace trireme::text
