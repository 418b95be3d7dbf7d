// The fields of a body that shape the chat prompt.
#pragma once

#include "serve/json_fields.h"
#include "text/chat.h"

namespace trireme::serve {

// messages, tools, tool_choice, response_format, thinking, reasoning_effort, chat_template_kwargs. Checks what the API
// promises about them; the content of messages is checked where it is encoded. Throws ApiError 400.
text::ChatRequest parse_chat_fields(const Fields& fields);

}  // namespace trireme::serve
