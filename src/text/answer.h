// A whole generated answer at once, for evaluation.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "text/output_parser.h"

namespace trireme::text {

struct ParsedAnswer {
  std::string reasoning;
  std::string content;
  // A list of {"name": string, "arguments": value}. Compares as JSON does: members in any order, 1 equal to 1.0.
  // Arguments that are no JSON (a json block that the model got wrong) stay a string.
  nlohmann::json tool_calls = nlohmann::json::array();
  bool finished = false;  // the end of the message was reached
};

// `ids` are the generated ids without the prompt, whose last opener is `start`.
ParsedAnswer parse_answer(const Tokenizer& tokenizer, std::span<const TokenId> ids, OutputParser::Channel start);

// Whether an answer is the expected one: a string is the whole content, with no tool call; a list of {"name",
// "arguments"} is the whole list of calls. Throws BadInput if `expected` is neither.
bool matches(const ParsedAnswer& answer, const nlohmann::json& expected);

}  // namespace trireme::text
