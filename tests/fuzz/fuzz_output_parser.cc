// Any stream of ids through the output parser: valid UTF-8, no marker in the text, calls with valid JSON.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "fuzz/seeds.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace {

using namespace trireme::text;

// Tags and attributes as single tokens, so that few bytes of input make a whole call.
const Tokenizer& tokenizer() {
  static const Tokenizer one = [] {
    Vocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) {
      vocabulary.tokens.emplace_back(1, static_cast<char>(static_cast<uint8_t>(byte)));
    }
    for (const char* word : {"think", "response", "tools", "message", "call", "argument", " tool=\"f\"", " key=\"k\"",
                             " type=\"number\"", " type=\"string\"", "&quot;", "&amp;", "=\"", "[1]", "true"}) {
      vocabulary.tokens.emplace_back(word);
    }
    for (int64_t i = 0; i < kSpecialCount; ++i)
      vocabulary.special_names.push_back("<|special_" + std::to_string(i) + "|>");
    vocabulary.special_names[1] = "[EOS]";
    vocabulary.special_names[2] = "<|end_of_msg|>";
    vocabulary.special_names[3] = "<|open|>";
    vocabulary.special_names[4] = "<|close|>";
    vocabulary.special_names[5] = "<|sep|>";
    return Tokenizer(std::move(vocabulary));
  }();
  return one;
}

// A json block passes as it stands, so only calls without one have to be valid JSON.
void check(const ParsedDelta& delta, bool may_have_block) {
  if (first_invalid_byte(delta.reasoning) || first_invalid_byte(delta.content)) std::abort();
  for (const ToolCall& call : delta.tool_calls) {
    if (call.name.empty() || first_invalid_byte(call.arguments) || !(may_have_block || is_json(call.arguments)))
      std::abort();
  }
}

const std::vector<std::string>& seeds() {
  using namespace std::string_literals;
  static const std::vector<std::string> kSeeds = {
      "\1r\333\310\334\332\311\334c\333\311\334\332\312\334\332\314\316\334\332\315\317\320\334\325\333\315\334\332\315\317\321\334v\333\315\334\333\314\334\333\312\334\333\313\334\331"s,
      "\2c\333\313\334\331"s, "\1r\332\312\334\332\314\316\334\333\314\334\360\237\230\200"s};
  return kSeeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  OutputParser parser(tokenizer(), static_cast<OutputParser::Channel>(data[0] % 3));
  StopMatcher stops({"\n\n", "</", "aab"});
  std::string shown;
  bool block = false;  // "j" came, so there may be a json tag
  bool typed = false;  // one character of a marker's name came as ordinary text
  for (size_t i = 1; i < size; ++i) {
    // Bytes 200..255 are ids from the first word on (tags, then special tokens); a few stand for ids outside the
    // vocabulary.
    const uint8_t byte = data[i];
    TokenId id = byte;
    if (byte >= 200) id = 256 + (byte - 200);
    if (byte == 254) id = -7;
    if (byte == 255) id = 1'000'000;
    typed = typed || id == '|';
    block = block || id == 'j';
    const ParsedDelta delta = parser.push(id);
    check(delta, block);
    shown += stops.push(delta.content) + delta.reasoning;
  }
  const ParsedDelta rest = parser.flush();
  check(rest, block);
  shown += stops.push(rest.content) + stops.flush() + rest.reasoning;
  if (!typed && shown.find("<|") != std::string::npos) std::abort();
  return 0;
}
