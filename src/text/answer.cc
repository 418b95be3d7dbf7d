#include "text/answer.h"

#include "base/error.h"
#include "text/json_text.h"

namespace trireme::text {

ParsedAnswer parse_answer(const Tokenizer& tokenizer, std::span<const TokenId> ids, OutputParser::Channel start) {
  OutputParser parser(tokenizer, start);
  ParsedAnswer answer;
  const auto add = [&](const ParsedDelta& delta) {
    answer.reasoning += delta.reasoning;
    answer.content += delta.content;
    for (const ToolCall& call : delta.tool_calls) {
      answer.tool_calls.push_back({{"name", call.name},
                                   {"arguments", is_json(call.arguments) ? nlohmann::json::parse(call.arguments)
                                                                         : nlohmann::json(call.arguments)}});
    }
  };
  for (const TokenId id : ids) add(parser.push(id));
  add(parser.flush());
  answer.finished = parser.finished();
  return answer;
}

bool matches(const ParsedAnswer& answer, const nlohmann::json& expected) {
  if (expected.is_string())
    return answer.tool_calls.empty() && answer.content == expected.get_ref<const std::string&>();
  if (!expected.is_array()) throw BadInput("answer: must be a string or a list of tool calls");
  nlohmann::json calls = nlohmann::json::array();
  for (const nlohmann::json& call : expected) {
    if (!call.is_object() || !call.contains("name") || !call.contains("arguments")) {
      throw BadInput("answer: each tool call must be an object with name and arguments");
    }
    calls.push_back({{"name", call["name"]}, {"arguments", call["arguments"]}});
  }
  return answer.tool_calls == calls;
}

}  // namespace trireme::text
