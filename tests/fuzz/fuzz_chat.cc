// Any JSON as a chat request: either a prompt or BadInput, never anything else.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "fuzz/seeds.h"
#include "text/chat.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace {

using namespace trireme;
using namespace trireme::text;

const Tokenizer& tokenizer() {
  static const Tokenizer one = [] {
    Vocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) {
      vocabulary.tokens.emplace_back(1, static_cast<char>(static_cast<uint8_t>(byte)));
    }
    for (int64_t i = 0; i < kSpecialCount; ++i)
      vocabulary.special_names.push_back("<special " + std::to_string(i) + ">");
    vocabulary.special_names[2] = "<|end_of_msg|>";
    vocabulary.special_names[3] = "<|open|>";
    vocabulary.special_names[4] = "<|close|>";
    vocabulary.special_names[5] = "<|sep|>";
    return Tokenizer(std::move(vocabulary));
  }();
  return one;
}

// A list is the messages; an object may set every field.
ChatRequest request_of(const nlohmann::ordered_json& json) {
  ChatRequest request;
  if (!json.is_object()) {
    request.messages = json;
    return request;
  }
  const auto text = [&](const char* key, std::string* into) {
    if (json.contains(key) && json[key].is_string()) *into = json[key].get<std::string>();
  };
  if (json.contains("messages")) request.messages = json["messages"];
  if (json.contains("tools")) request.tools = json["tools"];
  if (json.contains("response_format")) request.response_format = json["response_format"];
  if (json.contains("thinking")) request.thinking = json["thinking"] == true;
  text("thinking_effort", &request.thinking_effort);
  text("tool_choice", &request.tool_choice);
  return request;
}

const std::vector<std::string>& seeds() {
  using namespace std::string_literals;
  static const std::vector<std::string> kSeeds = {
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","name":"J","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":"","reasoning_content":"r","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\": [1e2, {\"b\": null}], \"c\": \"\\ud83d\\ude00\"}"}},{"id":"b","function":{"name":"g","arguments":{"x":1.5e300,"y":true}}}]},{"role":"tool","tool_call_id":"b","content":"2"},{"role":"tool","tool_call_id":"a","content":"1"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"tool_choice":"required","thinking_effort":"low"})",
      R"({"messages":[{"role":"system","tools":[{"type":"function","function":{"name":"g"}}]},{"role":"user","content":"u"}],"thinking":false,"tool_choice":"none","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"b":-0.0,"a":[]}}}})",
      R"({"a": NaN, "b" : [1, {"c" : "\u00e9"}], "d": -1.5e-3, "e": false} tail)"};
  return kSeeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const ChatRequest request = request_of(parse_json(bytes, "body"));
    const std::vector<TokenId> ids = encode_chat(tokenizer(), request);
    if (ids.size() < 3 || ids.back() != tokenizer().special().sep) std::abort();
  } catch (const BadInput& error) {
    if (first_invalid_byte(error.what())) std::abort();  // the message goes into a JSON answer
  }
  scan_arguments(bytes);
  return 0;
}
