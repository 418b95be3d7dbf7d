// The chat format before tokenisation: a list of segments, each of which is tokenised on its own.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"

namespace trireme::text {

enum class Marker { none, open, close, sep, end_of_msg };

// Either one marker or a text; texts are never empty.
struct Segment {
  Marker marker = Marker::none;
  std::string text;
  bool operator==(const Segment&) const = default;
};

// The whole prompt with its generation stub. Throws BadInput as check_chat does, or if the name of a tool result is not
// known.
std::vector<Segment> render_chat(const ChatRequest& request);

}  // namespace trireme::text
