// What the model emits, as reasoning, content and tool calls: a state machine over token ids.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace trireme::text {

struct ToolCall {
  int index = 0;  // 0-based, in order of appearance
  std::string name;
  std::string arguments;  // JSON text
};

// What one or more tokens added.
struct ParsedDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // complete calls only
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// The markers <|open|>, <|close|> and <|sep|> are ids that no text can produce, so nothing has to be held back but the
// bytes of an unfinished character, and neither a marker nor a tag ever reaches the visible text. Understood in any
// order:
//  * a channel ends at its own close, at the opening of another, or at the close of the message;
//  * a tool call counts once its own close has come; one that is cut off, or has no name, is dropped;
//  * an argument of type string is text, of any other type JSON if it parses (a string otherwise); a later argument of
//  the
//    same name replaces the earlier; a json block is the arguments as it stands;
//  * unknown tags change nothing; other special tokens, and ids outside the vocabulary, are dropped;
//  * after <|end_of_msg|> or [EOS] nothing more comes out.
class OutputParser {
 public:
  enum class Channel { outside, think, response };  // where generation begins: the stub's opener
  // `tokenizer` must outlive the parser.
  OutputParser(const Tokenizer& tokenizer, Channel start);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  ParsedDelta push(TokenId id);
  // At the end of generation: held bytes of an unfinished character.
  ParsedDelta flush();
  // True while the ids are in the think channel (for counting reasoning tokens). Markers and tags are not.
  bool in_reasoning() const;
  int tool_calls() const;  // complete calls so far
  bool finished() const;   // end of message seen

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::text
