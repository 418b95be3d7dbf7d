// K3's chat format: messages to token ids, segment by segment, so that nothing a user types can become a marker.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace trireme::text {

struct ChatRequest {
  // OpenAI messages: user, system, assistant, tool. Assistant messages may carry reasoning_content (or reasoning) and
  // tool_calls; a system message may carry tools instead of content, which declares them from there on.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();  // OpenAI tools; may be empty
  bool thinking = true;
  // low, medium, high or max. K3's own validator refuses medium although its prompt names it; it is taken here, as it
  // stands.
  std::string thinking_effort = "max";
  std::string tool_choice = "auto";  // auto, none, required
  // {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"name": .., "schema": {..}}}
  std::optional<nlohmann::ordered_json> response_format;
};

// A prompt ends with the opener of the channel in which generation begins, three ids long. K3's public API does not
// count them in usage.prompt_tokens.
inline constexpr int64_t kChannelOpenerTokens = 3;

// The prompt, generation stub included. Throws BadInput that names the message and field, or says that the tokenizer
// has no chat markers. Values nested deeper than kMaxJsonDepth (text/json_text.h) are refused; parse outside text with
// parse_json, which refuses them before a value exists.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const ChatRequest& request);

// The channel that the prompt of this request ends in: where an OutputParser has to start.
OutputParser::Channel chat_stub_channel(const ChatRequest& request);

}  // namespace trireme::text
