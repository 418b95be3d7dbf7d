// The JSON of answers: choices, chunks, usage and log probabilities in OpenAI's shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "serve/api_error.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace trireme::serve {

enum class AnswerForm : uint8_t { chat, completion };

struct AnswerHead {
  AnswerForm form = AnswerForm::chat;
  std::string id;       // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;  // Unix seconds
  std::string model;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
};

// How a choice ended; absent while it goes on.
struct ChoiceEnd {
  std::string finish_reason;  // "stop", "length", "tool_calls"
  Json matched_stop;          // the stop string or stop token id that ended it, otherwise null
};

// A prefix and 24 random hexadecimal digits.
std::string random_id(const std::string& prefix);

Json usage_json(const Usage& usage);

// The whole answer, or one chunk of a stream, around its choices.
Json answer_json(const AnswerHead& head, bool chunk, Json choices);

// The first chunk's choice in a chat stream: the role.
Json role_choice(int64_t index);
// A chunk's choice. `call_ids` names the delta's tool calls.
Json delta_choice(AnswerForm form, int64_t index, const text::ParsedDelta& delta,
                  const std::vector<std::string>& call_ids, Json logprobs, const std::optional<ChoiceEnd>& end);
// The choice of an answer that is not streamed.
Json whole_choice(AnswerForm form, int64_t index, const text::ParsedDelta& text,
                  const std::vector<std::string>& call_ids, Json logprobs, const ChoiceEnd& end);

// Log probabilities of every generated token, markers included. `text_offset` (completions) is where the first of them
// begins, in bytes of the text of all tokens, and is moved on.
Json logprobs_json(AnswerForm form, const text::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens,
                   int64_t& text_offset);

// A token as text; one that is not valid UTF-8 by itself as "bytes:\xe4\xbd".
std::string token_text(const text::Tokenizer& tokenizer, int32_t token);

// For strings that come from outside: dump() that cannot throw.
std::string dump(const Json& json);
// One event of a stream.
std::string sse(const Json& json);
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

}  // namespace trireme::serve
