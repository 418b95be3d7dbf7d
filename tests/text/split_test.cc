#include "text/split.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"

namespace trireme::text {
namespace {

std::vector<std::string> split(std::string_view text) {
  static const Splitter splitter;
  std::vector<std::string_view> pieces;
  splitter.split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

using Pieces = std::vector<std::string>;

TEST(Split, PublishedTexts) {
  EXPECT_EQ(split("The capital of France is"), (Pieces{"The", " capital", " of", " France", " is"}));
  EXPECT_EQ(split("hello 你好"), (Pieces{"hello", " ", "你好"}));
  EXPECT_EQ(split("第123页"), (Pieces{"第", "123", "页"}));
  EXPECT_EQ(split("1234567890 42 007"), (Pieces{"123", "456", "789", "0", " ", "42", " ", "007"}));
  EXPECT_EQ(split("a" + std::string(17, ' ') + "b"), (Pieces{"a", std::string(16, ' '), " b"}));
  EXPECT_EQ(split("line1\nline2\n\nline4"), (Pieces{"line", "1", "\n", "line", "2", "\n\n", "line", "4"}));
  EXPECT_EQ(split("don't can't it's I'm we'll they've he'd"),
            (Pieces{"don't", " can't", " it's", " I'm", " we'll", " they've", " he'd"}));
  EXPECT_EQ(split("😀🚀🧠"), (Pieces{"😀🚀🧠"}));
  EXPECT_EQ(split("Привет мир"), (Pieces{"Привет", " мир"}));
  EXPECT_EQ(split("こんにちは世界"), (Pieces{"こんにちは", "世界"}));
  EXPECT_EQ(split("안녕하세요"), (Pieces{"안녕하세요"}));
  EXPECT_EQ(split("='\" role=\""), (Pieces{"='\"", " role", "=\""}));
}

TEST(Split, HanIsTheScriptNotItsExtensions) {
  // Punctuation and kana marks that are used with Han, but are not of the script.
  EXPECT_EQ(split("你好。世界、"), (Pieces{"你好", "。", "世界", "、"}));
  EXPECT_EQ(split("「你」"), (Pieces{"「", "你", "」"}));
  EXPECT_EQ(split("人々〇"), (Pieces{"人々〇"}));  // a Han letter and a Han number
  EXPECT_EQ(split("ー字"), (Pieces{"ー", "字"}));  // Common
  EXPECT_EQ(split(" 你"), (Pieces{" ", "你"}));
  EXPECT_EQ(split("-你"), (Pieces{"-", "你"}));
  EXPECT_EQ(split("𠀀𠀁x"), (Pieces{"𠀀𠀁", "x"}));
}

TEST(Split, WordsAndCases) {
  EXPECT_EQ(split("helloWorld HTTPServer"), (Pieces{"hello", "World", " HTTPServer"}));
  EXPECT_EQ(split("ABC def"), (Pieces{"ABC", " def"}));
  EXPECT_EQ(split("aǅb"), (Pieces{"a", "ǅb"}));  // title case begins a word
  EXPECT_EQ(split("(foo) _bar"), (Pieces{"(foo", ")", " _", "bar"}));
  EXPECT_EQ(split("IT'S HE'LL'LL"), (Pieces{"IT'S", " HE'LL", "'LL"}));
  EXPECT_EQ(split("it’s"), (Pieces{"it", "’s"}));
  EXPECT_EQ(split("x'ſ"), (Pieces{"x'ſ"}));  // the long s folds to s
}

TEST(Split, MarksStayWithLetters) {
  EXPECT_EQ(split("cafe\u0301 x"), (Pieces{"cafe\u0301", " x"}));
  EXPECT_EQ(split("हिन्दी भाषा"), (Pieces{"हिन्दी", " भाषा"}));
  EXPECT_EQ(split("ไทย"), (Pieces{"ไทย"}));
  EXPECT_EQ(split("\u0301"), (Pieces{"\u0301"}));
  EXPECT_EQ(split("1\u0301"), (Pieces{"1", "\u0301"}));
}

TEST(Split, Numbers) {
  EXPECT_EQ(split("²³¼"), (Pieces{"²³¼"}));
  EXPECT_EQ(split("٠١٢٣"), (Pieces{"٠١٢", "٣"}));
  EXPECT_EQ(split("Ⅳ1a"), (Pieces{"Ⅳ1", "a"}));
}

TEST(Split, Whitespace) {
  EXPECT_EQ(split("a\r\nb"), (Pieces{"a", "\r\n", "b"}));
  EXPECT_EQ(split("a \r\n \n  b"), (Pieces{"a", " \r\n \n", " ", " b"}));
  EXPECT_EQ(split("x;\r\n\r\ny"), (Pieces{"x", ";\r\n\r\n", "y"}));
  EXPECT_EQ(split("a\u00A0\u00A0b"), (Pieces{"a", "\u00A0", "\u00A0b"}));
  EXPECT_EQ(split("a\u3000b"), (Pieces{"a", "\u3000b"}));
  EXPECT_EQ(split("a\u2028\u2028"), (Pieces{"a", "\u2028\u2028"}));
  EXPECT_EQ(split("  "), (Pieces{"  "}));
  EXPECT_EQ(split("a\u180E\u180Eb"), (Pieces{"a", "\u180E\u180E", "b"}));  // not whitespace since Unicode 6.3
  EXPECT_EQ(split("a\u200B\u200Bb"), (Pieces{"a", "\u200B\u200B", "b"}));
  EXPECT_EQ(split(std::string_view("\0\0a", 3)), (Pieces{std::string(2, '\0'), "a"}));
}

TEST(Split, EveryCharacterIsCoveredAndPiecesJoinToTheText) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    if (c > 0x3FFFF && c < 0xE0000) continue;  // nothing is assigned there
    std::string one;
    append_utf8(one, c);
    ASSERT_EQ(split(one), Pieces{one}) << "U+" << std::hex << static_cast<uint32_t>(c);
  }
  std::mt19937 random(7);
  const std::vector<std::string> atoms = {"a",  "B",      "1",  " ", "\n",     "\r", "你",
                                          "。", "\u0301", "'s", "😀", "\u00A0", "-",  "ก"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += atoms[random() % atoms.size()];
    std::string joined;
    for (const std::string& piece : split(text)) joined += piece;
    ASSERT_EQ(joined, text);
  }
}

// Texts built to make a backtracking matcher slow or overflow its stack.
TEST(Split, HugeRunsAreOrdinary) {
  for (const std::string& unit :
       Pieces{"a", "A", "1", " ", "\n", "你", "ก", "\u0301", "!", "Aก", " \n", "'s", "\u00A0"}) {
    std::string text;
    while (text.size() < 400'000) text += unit;
    size_t total = 0;
    for (const std::string& piece : split(text + "x")) total += piece.size();
    EXPECT_EQ(total, text.size() + 1) << unit;
  }
}

TEST(CutLongText, RunsAndSlices) {
  const auto cut = [](std::string_view text, int64_t slice, int64_t run) {
    const auto views = cut_long_text(text, slice, run);
    return Pieces(views.begin(), views.end());
  };
  EXPECT_EQ(cut("", 10, 3), Pieces{});
  EXPECT_EQ(cut("abc", 10, 3), (Pieces{"abc"}));
  EXPECT_EQ(cut("abcd", 10, 3), (Pieces{"abc", "d"}));
  EXPECT_EQ(cut("abcdefg", 10, 3), (Pieces{"abc", "def", "g"}));
  EXPECT_EQ(cut("ab    cd", 10, 3), (Pieces{"ab   ", " cd"}));
  EXPECT_EQ(cut("ab cd ef gh", 10, 3), (Pieces{"ab cd ef g", "h"}));
  EXPECT_EQ(cut("ab cd ef gh", 4, 3), (Pieces{"ab c", "d ef", " gh"}));
  EXPECT_EQ(cut("你好世界", 10, 3), (Pieces{"你好世", "界"}));  // code points, not bytes
  EXPECT_EQ(cut("a\x1d\x1d\x1d\x1d", 10, 3), (Pieces{"a\x1d\x1d\x1d", "\x1d"}));
}

TEST(CutLongText, TheRealLimits) {
  EXPECT_EQ(cut_long_text(std::string(25'000, 'a')).size(), 1U);
  EXPECT_EQ(cut_long_text(std::string(25'001, 'a')).size(), 2U);
  std::string words;
  while (words.size() < 400'000) words += "abc ";
  EXPECT_EQ(cut_long_text(words).size(), 1U);
  EXPECT_EQ(cut_long_text(words + "x").size(), 2U);
}

}  // namespace
}  // namespace trireme::text
