// Token ids to text as they come, never half a character.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace trireme::text {

// Joins bytes and hands out only whole UTF-8 characters; bytes that can never become one turn into U+FFFD.
class Utf8Stream {
 public:
  // Everything that is complete after appending `bytes`.
  std::string push(std::string_view bytes);
  // What is held back, as U+FFFD if it is an incomplete character.
  std::string flush();

 private:
  std::string held_;
};

// Watches streamed text for stop strings: holds back the longest suffix that could begin one. Of several, the one that
// is complete first ends the text (of those that end together, the longest). How the text is cut into pushes changes
// nothing.
class StopMatcher {
 public:
  // Throws BadInput if one is empty. May be constructed with none.
  explicit StopMatcher(std::vector<std::string> stops);
  // Text that is safe to show. After a stop string was found nothing more comes out.
  std::string push(std::string_view text);
  // At the end of generation: what was held back and after all begins no stop string.
  std::string flush();
  bool stopped() const { return stopped_; }
  // The stop string that ended the text; empty if none did.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace trireme::text
