#include "serve/chat_fields.h"

#include <fmt/format.h>

#include <set>

namespace trireme::serve {
namespace {

const std::vector<std::string> kEfforts = {"low", "medium", "high", "max"};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw ApiError(400, path + ": " + what, path);
}

// Checks a list of tool declarations and that no function is declared twice, here or in `names`.
void check_tools(const Json& tools, const std::string& path, std::set<std::string>& names) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string tool_path = fmt::format("{}[{}]", path, i);
    if (!tools[i].is_object()) refuse(tool_path, "must be an object, not " + kind_of(tools[i]));
    const Fields tool(tools[i], tool_path);
    if (!tool.choice("type", {"function"})) tool.refuse("type", "function");
    const Json* declared = tool.object("function");
    if (declared == nullptr) tool.refuse("function", "an object");
    const Fields function(*declared, tool.path("function"));
    const std::optional<std::string> name = function.string("name");
    if (!name || name->empty()) function.refuse("name", "a function's name");
    (void)function.string("description");
    (void)function.object("parameters");
    if (!names.insert(*name).second) {
      refuse(function.path("name"), fmt::format("the function {} is declared twice", shown(Json(*name))));
    }
  }
}

void check_tool_calls(const Json& calls, const std::string& path) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}]", path, i);
    if (!calls[i].is_object()) refuse(call_path, "must be an object, not " + kind_of(calls[i]));
    const Fields call(calls[i], call_path);
    (void)call.string("id");
    const Json* called = call.object("function");
    if (called == nullptr) call.refuse("function", "an object");
    const Fields function(*called, call.path("function"));
    if (!function.string("name")) function.refuse("name", "a function's name");
  }
}

void check_message(const Json& message, const std::string& path, std::set<std::string>& names) {
  if (!message.is_object()) refuse(path, "must be an object, not " + kind_of(message));
  const Fields fields(message, path);
  const std::optional<std::string> role = fields.string("role");
  if (!role) fields.refuse("role", "one of system, user, assistant, tool");
  if (*role == "tool" && !fields.string("tool_call_id"))
    fields.refuse("tool_call_id", "the id of the call that it answers");
  (void)fields.string("name");
  if (const Json* calls = fields.array("tool_calls"); calls != nullptr)
    check_tool_calls(*calls, fields.path("tool_calls"));
  const Json* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return;
  if (*role != "system") refuse(fields.path("tools"), "only a system message may declare tools");
  const Json* content = fields.find("content");
  if (content != nullptr && !content->empty() && *content != "") {
    refuse(fields.path("tools"), "a message that declares tools must have no content");
  }
  check_tools(*tools, fields.path("tools"), names);
}

// Smallest first: chat_template_kwargs, thinking, reasoning_effort.
void read_thinking(const Fields& fields, text::ChatRequest& chat) {
  if (const Json* value = fields.object("chat_template_kwargs"); value != nullptr) {
    const Fields kwargs(*value, fields.path("chat_template_kwargs"));
    chat.thinking = kwargs.boolean("thinking").value_or(chat.thinking);
    chat.thinking_effort = kwargs.choice("thinking_effort", kEfforts).value_or(chat.thinking_effort);
    if (kwargs.boolean("preserve_thinking") == false)
      kwargs.refuse("preserve_thinking", "true: past reasoning is always kept");
  }
  if (const Json* value = fields.object("thinking"); value != nullptr) {
    const Fields thinking(*value, fields.path("thinking"));
    if (const auto type = thinking.choice("type", {"enabled", "disabled"})) chat.thinking = *type == "enabled";
    (void)thinking.choice("keep", {"all"});
    chat.thinking_effort = thinking.choice("effort", kEfforts).value_or(chat.thinking_effort);
  }
  if (const auto effort = fields.choice("reasoning_effort", {"none", "low", "medium", "high", "max"})) {
    if (*effort == "none") {
      chat.thinking = false;
    } else {
      chat.thinking_effort = *effort;
    }
  }
}

void read_response_format(const Fields& fields, text::ChatRequest& chat) {
  const Json* value = fields.object("response_format");
  if (value == nullptr) return;
  const Fields format(*value, fields.path("response_format"));
  const auto type = format.choice("type", {"text", "json_object", "json_schema"});
  if (!type) format.refuse("type", "one of text, json_object, json_schema");
  if (*type == "json_schema") {
    const Json* declared = format.object("json_schema");
    if (declared == nullptr) format.refuse("json_schema", "an object with name and schema");
    const Fields schema(*declared, format.path("json_schema"));
    if (const auto name = schema.string("name"); !name || name->empty()) schema.refuse("name", "the schema's name");
    if (schema.object("schema") == nullptr) schema.refuse("schema", "a JSON schema");
  }
  chat.response_format = *value;
}

}  // namespace

text::ChatRequest parse_chat_fields(const Fields& fields) {
  text::ChatRequest chat;
  std::set<std::string> names;
  if (const Json* tools = fields.array("tools"); tools != nullptr) {
    check_tools(*tools, fields.path("tools"), names);
    chat.tools = *tools;
  }
  const Json* messages = fields.array("messages");
  if (messages == nullptr || messages->empty()) fields.refuse("messages", "an array with at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    check_message((*messages)[i], fmt::format("{}[{}]", fields.path("messages"), i), names);
  }
  chat.messages = *messages;
  if (const Json* choice = fields.find("tool_choice"); choice != nullptr) {
    if (choice->is_object())
      refuse(fields.path("tool_choice"), "naming one function is not supported; use auto, none or required");
    chat.tool_choice = *fields.choice("tool_choice", {"auto", "none", "required"});
    // Tools may come with a system message too.
    if (chat.tool_choice == "required" && names.empty())
      refuse(fields.path("tool_choice"), "required needs tools, and there are none");
  }
  read_thinking(fields, chat);
  read_response_format(fields, chat);
  return chat;
}

}  // namespace trireme::serve
