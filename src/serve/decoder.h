// One answer's tokens as text: reasoning, content and tool calls, stop strings taken out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace trireme::serve {

struct DecoderOptions {
  std::vector<std::string> stop;  // chat: looked for in the content alone
  // Chat: the tokens are parsed, beginning in this channel. Absent: plain text.
  std::optional<text::OutputParser::Channel> channel;
  bool skip_special_tokens = true;  // plain text: special tokens are left out
  bool separate_reasoning = true;   // chat; false: reasoning is put into content
  bool allow_tool_calls = true;     // chat; false: they are dropped
  bool one_tool_call = false;       // chat: the answer ends after its first call
};

class Decoder {
 public:
  Decoder(const text::Tokenizer& tokenizer, DecoderOptions options);

  // What the token added; nothing after ended().
  text::ParsedDelta push(text::TokenId token);
  // What was held back. Call once, after the last token.
  text::ParsedDelta flush();

  // Nothing further is wanted: a stop string was found, or the only tool call allowed is there.
  bool ended() const { return stops_.stopped() || (options_.one_tool_call && tool_calls_ > 0); }
  const std::string& matched_stop() const { return stops_.matched(); }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  int64_t tool_calls() const { return tool_calls_; }

 private:
  text::ParsedDelta shape(text::ParsedDelta delta, bool last);

  const text::Tokenizer& tokenizer_;
  const DecoderOptions options_;
  std::optional<text::OutputParser> parser_;
  text::Utf8Stream utf8_;
  text::StopMatcher stops_;
  int64_t reasoning_tokens_ = 0;
  int64_t tool_calls_ = 0;
};

}  // namespace trireme::serve
