// Bodies of requests: whatever comes in is either read or refused with an error that is one line of valid UTF-8.
//
// The first byte picks the endpoint, the rest is the body. A chat that is read is also encoded, with a tokenizer of
// single bytes.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "fuzz/seeds.h"
#include "serve/api_error.h"
#include "serve/requests.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace {

using trireme::serve::ApiError;
namespace text = trireme::text;

// base64 of one byte and of every byte value: a vocabulary of 256 ranks.
std::string byte_ranks() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (unsigned byte = 0; byte < 256; ++byte) {
    ranks += kDigits[byte >> 2];
    ranks += kDigits[(byte & 3) << 4];
    ranks += "== " + std::to_string(byte) + "\n";
  }
  return ranks;
}

void encode(const text::ChatRequest& chat) {
  static const text::Tokenizer tokenizer = text::Tokenizer::parse(byte_ranks(), "", "fuzz");
  if (text::encode_chat(tokenizer, chat).empty()) std::abort();
}

void read(uint8_t endpoint, std::string_view body) {
  const trireme::serve::RequestLimits limits{2048, {}};
  switch (endpoint % 4) {
    case 0:
      encode(trireme::serve::parse_chat_completion(body, limits).chat);
      break;
    case 1:
      if (trireme::serve::parse_completion(body, limits).prompts.empty()) std::abort();
      break;
    case 2: {
      const auto request = trireme::serve::parse_tokenize(body);
      if (const auto* chat = std::get_if<text::ChatRequest>(&request.input)) encode(*chat);
      break;
    }
    default:
      trireme::serve::parse_detokenize(body, limits);
  }
}

// One good body an endpoint, its number before it.
const std::vector<std::string>& seeds() {
  static const std::vector<std::string> all = {
      std::string(1, 0) +
          R"({"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"u"}]},
       {"role":"assistant","content":"","reasoning_content":"r","tool_calls":[{"id":"a","type":"function","function":{"name":"f",
       "arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"a","content":"t"}],"tools":[{"type":"function","function":{"name":"f",
       "parameters":{"type":"object"}}}],"tool_choice":"required","response_format":{"type":"json_schema","json_schema":{"name":"n",
       "schema":{}}},"thinking":{"type":"enabled","effort":"low"},"chat_template_kwargs":{"thinking":true},"logprobs":true,"top_logprobs":2,
       "stream":true,"stream_options":{"include_usage":true},"stop":["a"],"stop_token_ids":[1],"logit_bias":{"5":-1},"seed":3,"n":2})",
      std::string(1, 1) +
          R"({"prompt":[[1,2],[3]],"max_tokens":5,"echo":true,"temperature":0.5,"top_p":0.9,"top_k":3,"min_p":0.1})",
      std::string(1, 1) +
          R"({"prompt":["a","b"],"logprobs":2,"best_of":1,"presence_penalty":1,"min_tokens":1,"ignore_eos":true})",
      std::string(1, 2) + R"({"prompt":"text","return_token_strs":true})",
      std::string(1, 2) + R"({"messages":[{"role":"user","content":"u"}],"add_generation_prompt":false})",
      std::string(1, 3) + R"({"tokens":[1,2,3]})"};
  return all;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const ApiError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
    // dump() is strict: it throws at a message that is no valid UTF-8, and nothing catches that.
    if (trireme::serve::error_json(error).dump().empty()) std::abort();
  } catch (const trireme::BadInput&) {
  }
  return 0;
}
