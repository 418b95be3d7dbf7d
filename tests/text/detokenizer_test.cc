#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "text/utf8.h"

namespace trireme::text {
namespace {

TEST(Utf8Stream, HoldsBackAnUnfinishedCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE4"), "a");
  EXPECT_EQ(stream.push("\xBD"), "");
  EXPECT_EQ(stream.push("\xA0z"), "你z");
  EXPECT_EQ(stream.push("\xF0\x9F\x98"), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, WhatCanNeverBecomeACharacterIsReplacedAtOnce) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xFF"), "\uFFFD");
  EXPECT_EQ(stream.push("\xE4"), "");
  EXPECT_EQ(stream.push("a"), "\uFFFDa");
  EXPECT_EQ(stream.push("\x80"), "\uFFFD");
  EXPECT_EQ(stream.push("\xED"), "");
  EXPECT_EQ(stream.push("\xA0"), "\uFFFD\uFFFD");  // no surrogates
  EXPECT_EQ(stream.push("\xF0\x9F"
                        "A"),
            "\uFFFDA");  // one mark for the longest beginning
}

std::string random_bytes(std::mt19937& random) {
  std::string bytes;
  const auto parts = random() % 12;
  for (size_t i = 0; i < parts; ++i) {
    std::string one;
    append_utf8(one, static_cast<char32_t>(random() % (random() % 2 ? 0x900 : 0x110000)));
    if (random() % 3 == 0) one.resize(1 + random() % one.size());
    if (random() % 5 == 0) one += static_cast<char>(static_cast<uint8_t>(random()));
    bytes += one;
  }
  return bytes;
}

TEST(Utf8Stream, AnyCutGivesTheSameValidText) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = random_bytes(random);
    const std::string whole = replace_invalid(bytes);
    ASSERT_FALSE(first_invalid_byte(whole).has_value());
    Utf8Stream stream;
    std::string streamed;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = 1 + random() % 4;
      const std::string out = stream.push(std::string_view(bytes).substr(at, length));
      ASSERT_FALSE(first_invalid_byte(out).has_value());
      streamed += out;
      at += length;
    }
    ASSERT_EQ(streamed + stream.flush(), whole);
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStop) {
  StopMatcher matcher({"END", "ENOUGH"});
  EXPECT_EQ(matcher.push("the E"), "the ");
  EXPECT_EQ(matcher.push("N"), "");
  EXPECT_EQ(matcher.push("TER"), "ENTER");
  EXPECT_EQ(matcher.push("E"), "");
  EXPECT_EQ(matcher.push("ND more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "END");
  EXPECT_EQ(matcher.push("x"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, FlushGivesBackAFalseAlarm) {
  StopMatcher matcher({"<<>>"});
  EXPECT_EQ(matcher.push("a<<>"), "a");
  EXPECT_EQ(matcher.flush(), "<<>");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "");
}

TEST(StopMatcher, TheFirstToBeCompleteWins) {
  StopMatcher matcher({"abcd", "bc", "abc"});
  EXPECT_EQ(matcher.push("xabcd"), "x");
  EXPECT_EQ(matcher.matched(), "abc");
}

TEST(StopMatcher, NoStopsPassEverything) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, AnEmptyStopIsRefused) { EXPECT_THROW(StopMatcher({"a", ""}), BadInput); }

TEST(StopMatcher, AnyCutGivesTheSameText) {
  std::mt19937 random(9);
  const auto word = [&](size_t longest) {
    std::string out;
    const auto length = 1 + random() % longest;
    while (out.size() < length) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    while (stops.size() < 1 + round % 3U) stops.push_back(word(6));
    const std::string text = word(30);
    StopMatcher whole(stops);
    std::string expected = whole.push(text);
    expected += whole.flush();
    StopMatcher cut(stops);
    std::string streamed;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      streamed += cut.push(std::string_view(text).substr(at, length));
      at += length;
    }
    streamed += cut.flush();
    ASSERT_EQ(streamed, expected);
    ASSERT_EQ(cut.matched(), whole.matched());
    ASSERT_EQ(cut.stopped(), whole.stopped());
    for (const std::string& stop : stops) ASSERT_EQ(streamed.find(stop), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme::text
