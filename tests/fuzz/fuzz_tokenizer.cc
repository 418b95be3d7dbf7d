// Tokenizer files, and the encoding of any valid text. The first byte chooses; the rest is the file or the text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "fuzz/seeds.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace trireme;
using namespace trireme::text;

Vocabulary small_vocabulary() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.emplace_back(1, static_cast<char>(static_cast<uint8_t>(byte)));
  for (const char* merged :
       {"th", "he", "the", "  ", "    ", "aa", "aaaa", "\xE4\xBD", "你", "\r\n", "'s", "12", "123"}) {
    vocabulary.tokens.emplace_back(merged);
  }
  for (int64_t i = 0; i < kSpecialCount; ++i) vocabulary.special_names.push_back("<special " + std::to_string(i) + ">");
  return vocabulary;
}

// A file made of the 256 bytes and whatever the input adds, so that inputs get past the first check.
std::string bytes_file() {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (size_t byte = 0; byte < 256; ++byte) {
    file += alphabet[byte >> 2];
    file += alphabet[(byte & 3) << 4];
    file += "== " + std::to_string(byte) + "\n";
  }
  return file;
}

void parse_files(std::string_view ranks, std::string_view config) {
  try {
    const Tokenizer tokenizer = Tokenizer::parse(ranks, config, "fuzz");
    if (tokenizer.decode(tokenizer.encode("the text"), false) != "the text") std::abort();
  } catch (const BadInput&) {
  }
}

void encode_text(std::string_view bytes) {
  static const Tokenizer tokenizer(small_vocabulary());
  const std::string text = replace_invalid(bytes);
  if (tokenizer.decode(tokenizer.encode(text), false) != text) std::abort();
  try {
    tokenizer.encode(bytes);
    if (first_invalid_byte(bytes)) std::abort();
  } catch (const BadInput&) {
    if (!first_invalid_byte(bytes)) std::abort();
  }
}

const std::vector<std::string>& seeds() {
  using namespace std::string_literals;
  static const std::vector<std::string> kSeeds = {
      "\1dGg= 256\naGU= 257\n"s, "\2{\"added_tokens_decoder\": {\"258\": {\"content\": \"<|im_end|>\"}}}"s,
      "\3don't 你好。 12345 \r\n\r\n  the 🚀🧠 cafe\u0301\u00A0x"s, "\0dGg= 0\n"s};
  return kSeeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const std::string bytes = bytes_file();
  switch (data[0] % 4) {
    case 0:
      parse_files(rest, "");
      break;
    case 1:
      parse_files(bytes + std::string(rest), "");
      break;
    case 2:
      parse_files(bytes, rest);
      break;
    default:
      encode_text(rest);
  }
  return 0;
}
