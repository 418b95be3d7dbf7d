#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "text_support.h"

namespace trireme::text {
namespace {

using namespace test;

using Ids = std::vector<TokenId>;

TEST(Tokenizer, NanoSpecialTokens) {
  const Tokenizer tokenizer = nano_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 2048);
  const SpecialTokens& special = tokenizer.special();
  EXPECT_EQ(special.bos, 1792);
  EXPECT_EQ(special.eos, 1793);
  EXPECT_EQ(special.end_of_msg, 1794);
  EXPECT_EQ(special.open, 1795);
  EXPECT_EQ(special.close, 1796);
  EXPECT_EQ(special.sep, 1797);
  EXPECT_EQ(special.pad, 2047);
  EXPECT_FALSE(tokenizer.is_special(1791));
  EXPECT_TRUE(tokenizer.is_special(1792));
  EXPECT_TRUE(tokenizer.is_special(2047));
  EXPECT_FALSE(tokenizer.is_special(2048));
  EXPECT_EQ(tokenizer.special_id("<|open|>"), 1795);
  EXPECT_EQ(tokenizer.special_id("<|reserved_token_1802|>"), 1802);
  EXPECT_EQ(tokenizer.special_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(1795), "<|open|>");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(2048), "");
}

TEST(Tokenizer, NamesWithoutAConfigAreK3s) {
  const Tokenizer with = nano_tokenizer();
  const Tokenizer without = Tokenizer::parse(read_text(source_path("models/k3-nano/tiktoken.model")), "", "nano");
  for (TokenId id = 0; id < 2048; ++id) EXPECT_EQ(with.token_bytes(id), without.token_bytes(id)) << id;
}

TEST(Tokenizer, AnotherModelsMarkersAreNotInvented) {
  const Tokenizer tokenizer = Tokenizer::parse(
      rank_file(byte_tokens()), R"({"added_tokens_decoder": {"258": {"content": "<|im_end|>"}}})", "other");
  EXPECT_EQ(tokenizer.special().open, -1);
  EXPECT_EQ(tokenizer.special_id("<|im_end|>"), 258);
}

TEST(Tokenizer, SpecialTextInInputStaysText) {
  const Tokenizer tokenizer = nano_tokenizer();
  for (const TokenId id : tokenizer.encode("<|open|>message<|sep|>[EOS]<|end_of_msg|>"))
    EXPECT_FALSE(tokenizer.is_special(id));
}

TEST(Tokenizer, DecodeWithAndWithoutSpecials) {
  const Tokenizer tokenizer = nano_tokenizer();
  Ids ids = tokenizer.encode("hi");
  ids.insert(ids.begin(), 1795);
  ids.push_back(1794);
  EXPECT_EQ(tokenizer.decode(ids, true), "hi");
  EXPECT_EQ(tokenizer.decode(ids, false), "<|open|>hi<|end_of_msg|>");
}

TEST(Tokenizer, PublishedVectorsOfK3) {
  const Tokenizer tokenizer = partial_k3_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 163840);
  for (const auto& row : nlohmann::json::parse(read_text(source_path("tests/text/data/k3_vectors.json")))) {
    EXPECT_EQ(tokenizer.encode(row["text"].get<std::string>()), row["ids"].get<Ids>()) << row["text"];
  }
}

TEST(Tokenizer, LowestRankFirstAndLeftmostOfEquals) {
  // ids from 256 in order of rank
  const Tokenizer tokenizer = byte_tokenizer({"bc", "ab", "abc", "aa"});
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{258}));       // a token as a whole, whatever merging would give
  EXPECT_EQ(tokenizer.encode("zabc"), (Ids{89, 258}));  // a + bc, then abc
  EXPECT_EQ(tokenizer.encode("aaa"), (Ids{259, 64}));   // leftmost
  EXPECT_EQ(tokenizer.encode("zzabz"), (Ids{89, 89, 257, 89}));
}

TEST(Tokenizer, BothWaysOfMergingAgree) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens = byte_tokens();
    for (int i = 0; i < 40; ++i) {
      std::string token;
      const auto length = 2 + random() % 4;
      while (token.size() < length) token += static_cast<char>('a' + random() % 3);
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    const RankTable ranks(tokens, "test");
    std::string piece;
    const auto length = 1 + random() % 300;
    while (piece.size() < length) piece += static_cast<char>('a' + random() % 3);
    Ids brief;
    Ids queued;
    merge_short(ranks, piece, brief);
    merge_long(ranks, piece, queued);
    ASSERT_EQ(brief, queued) << piece;
  }
}

TEST(Tokenizer, AnyValidTextComesBack) {
  const Tokenizer tokenizer = nano_tokenizer();
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) append_utf8(text, static_cast<char32_t>(random() % (random() % 2 ? 0x250 : 0x20000)));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text), false), text);
  }
}

TEST(Tokenizer, HugePiecesAreFast) {
  const Tokenizer tokenizer = nano_tokenizer();
  for (const char* unit : {"a", " ", "\n", "!", "ab", "\u4F60", "\u0301"}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text), false), text) << unit;
  }
}

TEST(Tokenizer, LongTextIsCutBeforeItIsEncoded) {
  const Tokenizer tokenizer = byte_tokenizer({"aa"});
  const Ids ids = tokenizer.encode(std::string(25'003, 'a'));
  EXPECT_EQ(ids.size(), 12'500U + 2U);  // 25,000 in pairs; then a pair and one
  EXPECT_EQ(tokenizer.encode("b" + std::string(25'003, 'a')).size(), 1U + 12'499U + 1U + 2U);
}

TEST(Tokenizer, InvalidTextNamesTheByte) {
  const Tokenizer tokenizer = byte_tokenizer();
  const auto message = [&](const std::string& text) -> std::string {
    try {
      tokenizer.encode(text);
    } catch (const BadInput& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(message("abc\xFF"), "text is not valid UTF-8 at byte 3");
  EXPECT_EQ(message("\xE4\xBD"), "text is not valid UTF-8 at byte 0");          // ends early
  EXPECT_EQ(message("a\xC0\xAF"), "text is not valid UTF-8 at byte 1");         // overlong
  EXPECT_EQ(message("a\xED\xA0\x80"), "text is not valid UTF-8 at byte 1");     // a surrogate
  EXPECT_EQ(message("\xF4\x90\x80\x80"), "text is not valid UTF-8 at byte 0");  // above U+10FFFF
}

struct BadFile {
  const char* name;
  std::string ranks;
  std::string config;
  const char* says;
};

std::vector<BadFile> bad_files() {
  const std::string good = rank_file(byte_tokens());
  const auto names = [](const std::string& inside) { return R"({"added_tokens_decoder": )" + inside + "}"; };
  return {
      {"empty", "", "", "dir/tiktoken.model: 0 tokens"},
      {"no_space", good + "YWI=\n", "", "dir/tiktoken.model, line 257: expected base64"},
      {"blank_line", "\n" + good, "", "dir/tiktoken.model, line 1: expected base64"},
      {"two_spaces", good + "YWI=  256\n", "", "line 257: the second field is not a rank"},
      {"not_base64", good + "Y*I= 256\n", "", "line 257: the first field is not base64"},
      {"short_base64", good + "YWI 256\n", "", "line 257: the first field is not base64"},
      {"padding_bits", good + "YWJ= 256\n", "", "line 257: the first field is not base64"},
      {"empty_token", good + " 256\n", "", "line 257: the first field is not base64"},
      {"negative_rank", good + "YWI= -1\n", "", "line 257: the second field is not a rank"},
      {"huge_rank", good + "YWI= 99999999999\n", "", "line 257: the second field is not a rank"},
      {"carriage_return", good + "YWI= 256\r\n", "", "line 257: the second field is not a rank"},
      {"gap", good + "YWI= 257\n", "", "line 257: rank 257 in a file of 257 lines"},
      {"rank_twice", good + "YWI= 7\n", "", "line 257: rank 7 appears a second time"},
      {"bytes_twice", good + "YQ== 256\n", "", "dir/tiktoken.model: ranks: ranks 64 and 256 have the same bytes"},
      {"byte_missing", good.substr(good.find('\n') + 1) + "YWI= 0\n", "", "the single byte 0x21 has no rank"},
      {"config_not_json", good, "{", "dir/tokenizer_config.json: not valid JSON"},
      {"config_not_object", good, "[]", "dir/tokenizer_config.json: must be a JSON object"},
      {"config_deep", good, std::string(1000, '['), "nested more than 128 deep"},
      {"added_not_object", good, names("[]"), "added_tokens_decoder must be an object"},
      {"id_not_number", good, names(R"({"x": {"content": "a"}})"), "added_tokens_decoder[\"x\"]: not one of the 256"},
      {"id_among_ranks", good, names(R"({"255": {"content": "a"}})"),
       "added_tokens_decoder[\"255\"]: not one of the 256"},
      {"id_behind", good, names(R"({"512": {"content": "a"}})"), "added_tokens_decoder[\"512\"]: not one of the 256"},
      {"no_content", good, names(R"({"256": {}})"), "[\"256\"]: must be an object whose \"content\""},
      {"content_number", good, names(R"({"256": {"content": 1}})"), "[\"256\"]: must be an object whose \"content\""},
      {"content_empty", good, names(R"({"256": {"content": ""}})"), "[\"256\"]: must be an object whose \"content\""},
      {"name_twice", good, names(R"({"256": {"content": "a"}, "257": {"content": "a"}})"),
       "two special ids are called \"a\""},
  };
}

class MalformedTokenizer : public testing::TestWithParam<BadFile> {};

TEST_P(MalformedTokenizer, IsRefusedByName) {
  try {
    Tokenizer::parse(GetParam().ranks, GetParam().config, "dir");
    FAIL() << "accepted";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MalformedTokenizer, testing::ValuesIn(bad_files()),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST(Tokenizer, LoadNamesTheMissingFile) {
  const auto dir = std::filesystem::path(testing::TempDir()) / "no-tokenizer-here";
  try {
    Tokenizer::load(dir);
    FAIL();
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("no-tokenizer-here/tiktoken.model"), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, LoadRefusesWhatIsNoFile) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / ("odd-tokenizer-" + std::to_string(getpid()));
  fs::create_directories(dir);
  const auto refusal = [&] {
    try {
      (void)Tokenizer::load(dir);
    } catch (const BadInput& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  ASSERT_EQ(mkfifo((dir / "tiktoken.model").c_str(), 0600), 0);  // would be waited for
  EXPECT_EQ(refusal(), (dir / "tiktoken.model").string() + ": it is not a regular file");
  fs::remove(dir / "tiktoken.model");
  fs::create_directory(dir / "tiktoken.model");
  EXPECT_EQ(refusal(), (dir / "tiktoken.model").string() + ": it is not a regular file");
  fs::remove(dir / "tiktoken.model");
  fs::copy_file(source_path("models/k3-nano/tiktoken.model"), dir / "tiktoken.model");
  EXPECT_EQ(refusal(), "nothing thrown");
  std::ofstream(dir / "tokenizer_config.json") << "";  // not the same as none
  EXPECT_EQ(refusal(), (dir / "tokenizer_config.json").string() + ": it is empty; it must be a JSON object");
  fs::remove_all(dir);
}

}  // namespace
}  // namespace trireme::text
