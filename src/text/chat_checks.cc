#include "text/chat_checks.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "base/error.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& where, const std::string& what) { throw BadInput(where + ": " + what); }

std::string kind(const Json& value) { return value.type_name(); }

void check_utf8(std::string_view text, const std::string& where) {
  if (const auto offset = first_invalid_byte(text)) fail(where, fmt::format("not valid UTF-8 at byte {}", *offset));
}

void check_string(const Json& value, const std::string& where) {
  if (!value.is_string()) fail(where, fmt::format("must be a string, not {}", kind(value)));
  check_utf8(value.get_ref<const std::string&>(), where);
}

// A member that must be there and hold text.
const std::string& required_text(const Json& object, const char* name, const std::string& where) {
  const std::string path = where + "." + name;
  const Json* value = field(object, name);
  if (value == nullptr) fail(path, "missing; must be a non-empty string");
  check_string(*value, path);
  if (value->get_ref<const std::string&>().empty()) fail(path, "must not be empty");
  return value->get_ref<const std::string&>();
}

void optional_text(const Json& object, const char* name, const std::string& where) {
  if (const Json* value = field(object, name)) check_string(*value, where + "." + name);
}

// Depth and text of a value that is rendered as JSON. The depth test comes before each step down, so that nothing
// overflows.
void check_value(const Json& value, const std::string& where, int64_t depth) {
  if (depth > kMaxJsonDepth) fail(where, fmt::format("nested more than {} deep", kMaxJsonDepth));
  if (value.is_string()) {
    check_utf8(value.get_ref<const std::string&>(), where);
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
      check_utf8(key, where);
      check_value(member, where, depth + 1);
    }
  } else if (value.is_array()) {
    for (const Json& element : value) check_value(element, where, depth + 1);
  } else if (value.is_binary() || value.is_discarded()) {
    fail(where, "holds a value that JSON has no form for");
  }
}

void check_object(const Json& value, const std::string& where) {
  if (!value.is_object()) fail(where, fmt::format("must be an object, not {}", kind(value)));
}

void check_content_part(const Json& part, const std::string& where) {
  check_object(part, where);
  const std::string& type = required_text(part, "type", where);
  if (type.find("image") != std::string::npos || type.find("video") != std::string::npos ||
      type.find("audio") != std::string::npos) {
    fail(where + ".type", fmt::format("\"{}\" is not supported; this engine takes text only", type));
  }
  if (type != "text") fail(where + ".type", fmt::format("unknown part type \"{}\"; must be \"text\"", type));
  const Json* text = field(part, "text");
  if (text == nullptr) fail(where + ".text", "missing; must be a string");
  check_string(*text, where + ".text");
}

void check_content(const Json& message, const std::string& where, bool required) {
  const Json* content = field(message, "content");
  const std::string path = where + ".content";
  if (content == nullptr) {
    if (required) fail(path, "missing; must be a string or a list of text parts");
    return;
  }
  if (content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) check_content_part((*content)[i], fmt::format("{}[{}]", path, i));
    return;
  }
  if (!content->is_string())
    fail(path, fmt::format("must be a string or a list of text parts, not {}", kind(*content)));
  check_string(*content, path);
}

bool has_content(const Json& message) {
  const Json* content = field(message, "content");
  return content != nullptr && !content->empty() && *content != "";
}

class Checker {
 public:
  explicit Checker(const ChatRequest& request) : request_(request) {}

  void run() {
    check_tools(request_.tools, "tools");
    if (!request_.messages.is_array()) fail("messages", fmt::format("must be a list, not {}", kind(request_.messages)));
    if (request_.messages.empty()) fail("messages", "must not be empty");
    for (size_t i = 0; i < request_.messages.size(); ++i) {
      check_message(request_.messages[i], fmt::format("messages[{}]", i));
    }
    check_options();
    if (request_.response_format) check_response_format(*request_.response_format);
  }

 private:
  void check_tools(const Json& tools, const std::string& where) {
    if (tools.is_null()) return;
    if (!tools.is_array()) fail(where, fmt::format("must be a list, not {}", kind(tools)));
    for (size_t i = 0; i < tools.size(); ++i) check_tool(tools[i], fmt::format("{}[{}]", where, i));
  }

  void check_tool(const Json& tool, const std::string& where) {
    check_object(tool, where);
    const std::string& type = required_text(tool, "type", where);
    if (type != "function") fail(where + ".type", fmt::format("unknown tool type \"{}\"; must be \"function\"", type));
    const Json* function = field(tool, "function");
    if (function == nullptr) fail(where + ".function", "missing; must be an object");
    check_object(*function, where + ".function");
    const std::string& name = required_text(*function, "name", where + ".function");
    optional_text(*function, "description", where + ".function");
    if (const Json* parameters = field(*function, "parameters"))
      check_object(*parameters, where + ".function.parameters");
    check_value(tool, where, 0);
    if (!names_.insert(name).second)
      fail(where + ".function.name", fmt::format("a second function called \"{}\"", name));
  }

  void check_message(const Json& message, const std::string& where) {
    check_object(message, where);
    const std::string& role = required_text(message, "role", where);
    const Json* tools = field(message, "tools");
    if (role != "system" && tools != nullptr && !tools->empty()) {
      fail(where + ".tools", fmt::format("only a system message may declare tools, not role \"{}\"", role));
    }
    if (role == "user") {
      check_content(message, where, true);
      optional_text(message, "name", where);
    } else if (role == "system") {
      check_system(message, where);
    } else if (role == "assistant") {
      check_assistant(message, where);
    } else if (role == "tool") {
      check_content(message, where, true);
      required_text(message, "tool_call_id", where);
      optional_text(message, "name", where);
      optional_text(message, "tool", where);
    } else {
      fail(where + ".role", fmt::format("unknown role \"{}\"; must be system, user, assistant or tool", role));
    }
  }

  void check_system(const Json& message, const std::string& where) {
    optional_text(message, "name", where);
    if (const Json* tools = field(message, "tools")) check_tools(*tools, where + ".tools");
    const bool declares = declares_tools(message);
    check_content(message, where, !declares);
    if (declares && has_content(message))
      fail(where + ".content", "must be empty in a system message that declares tools");
  }

  void check_assistant(const Json& message, const std::string& where) {
    check_content(message, where, false);
    optional_text(message, "name", where);
    optional_text(message, "reasoning_content", where);
    optional_text(message, "reasoning", where);
    const Json* calls = field(message, "tool_calls");
    if (calls == nullptr) return;
    const std::string path = where + ".tool_calls";
    if (!calls->is_array()) fail(path, fmt::format("must be a list, not {}", kind(*calls)));
    for (size_t i = 0; i < calls->size(); ++i) check_call((*calls)[i], fmt::format("{}[{}]", path, i));
  }

  static void check_call(const Json& call, const std::string& where) {
    check_object(call, where);
    optional_text(call, "id", where);
    if (const Json* type = field(call, "type"); type != nullptr && *type != "function") {
      fail(where + ".type", "must be \"function\"");
    }
    const Json* function = field(call, "function");
    if (function == nullptr) fail(where + ".function", "missing; must be an object");
    check_object(*function, where + ".function");
    required_text(*function, "name", where + ".function");
    const Json* arguments = field(*function, "arguments");
    if (arguments == nullptr) return;
    const std::string path = where + ".function.arguments";
    if (!arguments->is_string() && !arguments->is_object()) {
      fail(path, fmt::format("must be a string or an object, not {}", kind(*arguments)));
    }
    check_value(*arguments, path, 0);
  }

  void check_options() const {
    const std::string& effort = request_.thinking_effort;
    if (effort != "low" && effort != "medium" && effort != "high" && effort != "max") {
      fail("thinking_effort", "must be low, medium, high or max");
    }
    const std::string& choice = request_.tool_choice;
    if (choice != "auto" && choice != "none" && choice != "required") {
      fail("tool_choice", "must be auto, none or required");
    }
    if (choice == "required" && names_.empty()) fail("tool_choice", "\"required\" needs at least one tool");
  }

  static void check_response_format(const Json& format) {
    check_object(format, "response_format");
    const std::string& type = required_text(format, "type", "response_format");
    if (type == "text" || type == "json_object") return;
    if (type != "json_schema") fail("response_format.type", "must be text, json_object or json_schema");
    const Json* schema = field(format, "json_schema");
    const std::string path = "response_format.json_schema";
    if (schema == nullptr) fail(path, "missing; must be an object with name and schema");
    check_object(*schema, path);
    required_text(*schema, "name", path);
    const Json* body = field(*schema, "schema");
    if (body == nullptr) body = field(*schema, "json_schema");
    if (body == nullptr) fail(path + ".schema", "missing; must be an object");
    check_object(*body, path + ".schema");
    check_value(*body, path + ".schema", 0);
  }

  const ChatRequest& request_;
  std::set<std::string> names_;
};

}  // namespace

const Json* field(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

bool declares_tools(const Json& message) {
  const Json* tools = field(message, "tools");
  return tools != nullptr && !tools->empty();
}

void check_chat(const ChatRequest& request) { Checker(request).run(); }

}  // namespace trireme::text
