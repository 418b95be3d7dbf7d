// What a chat request must be before it is rendered.
#pragma once

#include <string>

#include "text/chat.h"

namespace trireme::text {

// Throws BadInput that names message and field ("messages[3].content: ...") for anything that cannot be rendered or
// that the K3 API refuses: wrong types, invalid UTF-8, unknown roles, images, duplicate function names, tool results
// without an id, too deep values. After it, rendering may rely on every field's type.
void check_chat(const ChatRequest& request);

// The member `name` of an object; null if it is absent or JSON null.
const nlohmann::ordered_json* field(const nlohmann::ordered_json& object, const char* name);

// Whether this is a system message that declares tools.
bool declares_tools(const nlohmann::ordered_json& message);

}  // namespace trireme::text
