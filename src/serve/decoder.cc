#include "serve/decoder.h"

#include <utility>

namespace trireme::serve {

Decoder::Decoder(const text::Tokenizer& tokenizer, DecoderOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), stops_(options_.stop) {
  if (options_.channel) parser_.emplace(tokenizer, *options_.channel);
}

text::ParsedDelta Decoder::push(text::TokenId token) {
  if (ended()) return {};
  text::ParsedDelta delta;
  if (parser_) {
    // A marker that closes the channel counts as part of it.
    if (parser_->in_reasoning()) ++reasoning_tokens_;
    delta = parser_->push(token);
  } else if (!options_.skip_special_tokens || !tokenizer_.is_special(token)) {
    delta.content = utf8_.push(tokenizer_.token_bytes(token));
  }
  return shape(std::move(delta), false);
}

text::ParsedDelta Decoder::flush() {
  if (ended()) return {};
  text::ParsedDelta delta;
  if (parser_) {
    delta = parser_->flush();
  } else {
    delta.content = utf8_.flush();
  }
  return shape(std::move(delta), true);
}

text::ParsedDelta Decoder::shape(text::ParsedDelta delta, bool last) {
  delta.content = stops_.push(delta.content);
  if (last) delta.content += stops_.flush();
  if (!options_.separate_reasoning) {
    delta.content = delta.reasoning + delta.content;
    delta.reasoning.clear();
  }
  if (!options_.allow_tool_calls || stops_.stopped()) delta.tool_calls.clear();
  if (options_.one_tool_call && !delta.tool_calls.empty())
    delta.tool_calls.erase(delta.tool_calls.begin() + 1, delta.tool_calls.end());
  tool_calls_ += static_cast<int64_t>(delta.tool_calls.size());
  if (options_.one_tool_call && tool_calls_ > 0) delta.content += stops_.flush();  // no flush() follows
  return delta;
}

}  // namespace trireme::serve
