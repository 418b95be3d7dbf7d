// Tokens of k3-nano as text: characters stay whole, stop strings are cut out, channels are told apart.
#include "serve/decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/answers.h"

namespace trireme::serve {
namespace {

using text::OutputParser;
using text::TokenId;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer loaded = text::Tokenizer::load(TRIREME_SOURCE_DIR "/models/k3-nano");
  return loaded;
}

// Text in which <open>, <close>, <sep> and <end> stand for the markers.
std::vector<TokenId> tokens(const std::string& marked) {
  const text::SpecialTokens& special = tokenizer().special();
  const std::pair<std::string, TokenId> markers[] = {
      {"<open>", special.open}, {"<close>", special.close}, {"<sep>", special.sep}, {"<end>", special.end_of_msg}};
  std::vector<TokenId> ids;
  std::string plain;
  const auto flush = [&] {
    for (const TokenId id : tokenizer().encode(plain)) ids.push_back(id);
    plain.clear();
  };
  for (size_t at = 0; at < marked.size();) {
    bool found = false;
    for (const auto& [name, id] : markers) {
      if (marked.compare(at, name.size(), name) != 0) continue;
      flush();
      ids.push_back(id);
      at += name.size();
      found = true;
      break;
    }
    if (!found) plain += marked[at++];
  }
  flush();
  return ids;
}

struct Decoded {
  std::string reasoning;
  std::string content;
  std::vector<text::ToolCall> calls;
  size_t pushed = 0;  // tokens until the decoder had enough
};

void add(Decoded& all, const text::ParsedDelta& delta) {
  // No piece ever holds half a character.
  text::Utf8Stream stream;
  EXPECT_EQ(stream.push(delta.content), delta.content);
  all.reasoning += delta.reasoning;
  all.content += delta.content;
  all.calls.insert(all.calls.end(), delta.tool_calls.begin(), delta.tool_calls.end());
}

Decoded decode(Decoder& decoder, const std::vector<TokenId>& ids) {
  Decoded all;
  for (const TokenId id : ids) {
    if (decoder.ended()) break;
    ++all.pushed;
    add(all, decoder.push(id));
  }
  add(all, decoder.flush());
  return all;
}

TEST(Decoder, PlainTextKeepsCharactersWhole) {
  const std::string words = "Hello 你好 🙂 end";
  Decoder decoder(tokenizer(), {});
  EXPECT_EQ(decode(decoder, tokens(words)).content, words);
  EXPECT_FALSE(decoder.ended());
  // Cut inside a character: what is left becomes one replacement character.
  std::vector<TokenId> ids = tokenizer().encode("a🙂");
  ids.pop_back();
  Decoder cut(tokenizer(), {});
  EXPECT_EQ(decode(cut, ids).content, "a\xEF\xBF\xBD");
}

TEST(Decoder, SpecialTokensAreShownOnlyIfAsked) {
  Decoder skipping(tokenizer(), {});
  EXPECT_EQ(decode(skipping, tokens("a<end>b")).content, "ab");
  DecoderOptions options;
  options.skip_special_tokens = false;
  Decoder showing(tokenizer(), options);
  EXPECT_EQ(decode(showing, tokens("a<end>b")).content, "a<|end_of_msg|>b");
}

TEST(Decoder, StopStringsEndPlainText) {
  DecoderOptions options;
  options.stop = {"answer is", "zzz"};
  Decoder decoder(tokenizer(), options);
  const std::vector<TokenId> ids = tokens("So the answer is 24 and more.");
  const Decoded decoded = decode(decoder, ids);
  EXPECT_EQ(decoded.content, "So the ");
  EXPECT_LT(decoded.pushed, ids.size());
  EXPECT_EQ(decoder.matched_stop(), "answer is");
  // A beginning that comes to nothing is given back at the end.
  Decoder other(tokenizer(), options);
  EXPECT_EQ(decode(other, tokens("the answer i")).content, "the answer i");
}

constexpr const char* kThought =
    "think of answer<close>think<sep><open>response<sep>the answer<close>response<sep><open>tools<sep>"
    "<open>call tool=\"f\" index=\"1\"<sep><open>argument key=\"x\" "
    "type=\"number\"<sep>1<close>argument<sep><close>call<sep>"
    "<open>call tool=\"g\" index=\"2\"<sep><close>call<sep><close>tools<sep><close>message<sep><end>";

DecoderOptions chat() {
  DecoderOptions options;
  options.channel = OutputParser::Channel::think;
  return options;
}

TEST(Decoder, ChannelsAreToldApart) {
  Decoder decoder(tokenizer(), chat());
  const Decoded decoded = decode(decoder, tokens(kThought));
  EXPECT_EQ(decoded.reasoning, "think of answer");
  EXPECT_EQ(decoded.content, "the answer");
  ASSERT_EQ(decoded.calls.size(), 2U);
  EXPECT_EQ(decoded.calls[0].name, "f");
  EXPECT_EQ(decoded.calls[0].arguments, "{\"x\": 1}");
  EXPECT_EQ(decoder.tool_calls(), 2);
  const auto thought = static_cast<int64_t>(tokenizer().encode("think of answer").size());
  EXPECT_GE(decoder.reasoning_tokens(), thought);
  EXPECT_LE(decoder.reasoning_tokens(), thought + 3);  // and the markers that close it
}

TEST(Decoder, StopStringsOfChatsAreLookedForInContent) {
  DecoderOptions options = chat();
  options.stop = {"answer"};
  Decoder decoder(tokenizer(), options);
  const Decoded decoded = decode(decoder, tokens(kThought));
  EXPECT_EQ(decoded.reasoning, "think of answer");
  EXPECT_EQ(decoded.content, "the ");
  EXPECT_TRUE(decoded.calls.empty());
}

TEST(Decoder, OneCallOrNone) {
  DecoderOptions options = chat();
  options.one_tool_call = true;
  options.stop = {"answers"};  // its beginning is held back when the call comes
  Decoder one(tokenizer(), options);
  const Decoded first = decode(one, tokens(kThought));
  EXPECT_EQ(first.calls.size(), 1U);
  EXPECT_EQ(first.content, "the answer");
  EXPECT_LT(first.pushed, tokens(kThought).size());
  options = chat();
  options.allow_tool_calls = false;
  Decoder none(tokenizer(), options);
  EXPECT_TRUE(decode(none, tokens(kThought)).calls.empty());
}

TEST(Decoder, ReasoningMayBeJoined) {
  DecoderOptions options = chat();
  options.separate_reasoning = false;
  Decoder decoder(tokenizer(), options);
  const Decoded decoded = decode(decoder, tokens(kThought));
  EXPECT_EQ(decoded.content, "think of answerthe answer");
  EXPECT_TRUE(decoded.reasoning.empty());
}

TEST(Answers, TokenTextAndIds) {
  const TokenId half = tokenizer().encode("🙂").front();
  ASSERT_LT(tokenizer().token_bytes(half).size(), 4U);
  EXPECT_TRUE(token_text(tokenizer(), half).starts_with("bytes:\\xf0"));
  EXPECT_EQ(token_text(tokenizer(), tokenizer().encode("a").front()), "a");
  EXPECT_NE(random_id("x-"), random_id("x-"));
  EXPECT_EQ(random_id("x-").size(), 26U);
}

}  // namespace
}  // namespace trireme::serve
