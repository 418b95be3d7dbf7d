#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/chat_checks.h"
#include "text/chat_segments.h"
#include "text/json_text.h"

namespace trireme::text {

namespace {

using Json = nlohmann::ordered_json;
using Attributes = std::vector<std::pair<std::string_view, std::string>>;

constexpr std::string_view kToolsHead = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
constexpr std::string_view kMoreToolsHead =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n```json\n";
constexpr std::string_view kFence = "\n```";
constexpr std::string_view kEffort =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
    "`thinking_effort={}`.";
constexpr std::string_view kRequired =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
constexpr std::string_view kNone =
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.";
constexpr std::string_view kFormat =
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown code "
    "blocks "
    "(```json) or any additional formatting.";
constexpr std::string_view kSchemaHead = "\nThe JSON data must match the following schema:\n```json\n";

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text_of(const Json* value) { return value == nullptr ? "" : value->get<std::string>(); }

// The argument type of a value that came as JSON and not as text.
std::string_view type_name(const Json& value) { return value.is_number() ? "number" : value.type_name(); }

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request) : request_(request) {}

  std::vector<Segment> run() {
    if (!request_.tools.empty()) declare_tools(request_.tools, kToolsHead);
    if (request_.thinking) {
      system_message("thinking-effort", fmt::format(fmt::runtime(kEffort), request_.thinking_effort));
    }
    const Json& messages = request_.messages;
    for (size_t i = 0; i < messages.size();) {
      const std::string role = messages[i]["role"].get<std::string>();
      if (role == "tool") {
        i = tool_results(i);
        continue;
      }
      if (role == "assistant") {
        assistant(messages[i]);
      } else if (declares_tools(messages[i])) {
        declare_tools(messages[i]["tools"], kMoreToolsHead);
      } else {
        plain(messages[i], role);
      }
      ++i;
    }
    if (request_.tool_choice == "required") system_message("tool-choice", kRequired);
    if (request_.tool_choice == "none") system_message("tool-choice", kNone);
    response_format();
    open("message", {{"role", "assistant"}});
    open(request_.thinking ? "think" : "response");
    return std::move(out_);
  }

 private:
  void marker(Marker which) { out_.push_back({which, {}}); }
  void text(std::string_view value) {
    if (!value.empty()) out_.push_back({Marker::none, std::string(value)});
  }
  void open(std::string_view tag, const Attributes& attributes = {}) {
    marker(Marker::open);
    text(tag);
    for (const auto& [key, value] : attributes) {
      text(fmt::format(" {}", key));
      text("=\"");
      text(escape_attribute(value));
      text("\"");
    }
    marker(Marker::sep);
  }
  void close(std::string_view tag) {
    marker(Marker::close);
    text(tag);
    marker(Marker::sep);
  }
  void end_message() {
    close("message");
    marker(Marker::end_of_msg);
  }

  void system_message(const std::string& type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    text(body);
    end_message();
  }

  void declare_tools(const Json& tools, std::string_view head) {
    system_message("tool-declare", std::string(head) + canonical_json(tools) + std::string(kFence));
  }

  void response_format() {
    if (!request_.response_format) return;
    const std::string type = (*request_.response_format)["type"].get<std::string>();
    if (type == "text") return;
    std::string body = fmt::format(fmt::runtime(kFormat), type);
    if (type == "json_schema") {
      const Json& holder = (*request_.response_format)["json_schema"];
      const Json* schema = field(holder, "schema");
      if (schema == nullptr) schema = field(holder, "json_schema");
      body += std::string(kSchemaHead) + canonical_json(*schema) + std::string(kFence);
    }
    system_message("response-format", body);
  }

  void content(const Json& message) {
    const Json* value = field(message, "content");
    if (value == nullptr) return;
    if (value->is_string()) return text(value->get_ref<const std::string&>());
    for (const Json& part : *value) text(part["text"].get_ref<const std::string&>());
  }

  static Attributes role_attributes(const Json& message, const std::string& role) {
    Attributes attributes = {{"role", role}};
    if (const std::string name = text_of(field(message, "name")); !name.empty()) attributes.emplace_back("name", name);
    return attributes;
  }

  void plain(const Json& message, const std::string& role) {
    open("message", role_attributes(message, role));
    content(message);
    end_message();
  }

  void assistant(const Json& message) {
    open("message", role_attributes(message, "assistant"));
    if (request_.thinking) {
      const Json* reasoning = field(message, "reasoning_content");
      if (reasoning == nullptr) reasoning = field(message, "reasoning");
      open("think");
      text(text_of(reasoning));
      close("think");
    }
    open("response");
    content(message);
    close("response");
    calls_ = field(message, "tool_calls");
    results_ = 0;
    call_of_id_.clear();
    for (size_t i = 0; calls_ != nullptr && i < calls_->size(); ++i) {
      if (const Json* id = field((*calls_)[i], "id")) call_of_id_.emplace(id->get_ref<const std::string&>(), i);
    }
    if (calls_ != nullptr && !calls_->empty()) {
      open("tools");
      for (size_t i = 0; i < calls_->size(); ++i) call((*calls_)[i]["function"], i + 1);
      close("tools");
    }
    end_message();
  }

  void call(const Json& function, size_t index) {
    open("call", {{"tool", function["name"].get<std::string>()}, {"index", std::to_string(index)}});
    if (const Json* arguments = field(function, "arguments")) {
      if (arguments->is_object()) {
        for (const auto& [key, value] : arguments->get_ref<const Json::object_t&>()) {
          argument(key, std::string(type_name(value)),
                   value.is_string() ? value.get<std::string>() : spaced_json(value));
        }
      } else if (const std::string raw = arguments->get<std::string>(); !raw.empty()) {
        argument_text(raw);
      }
    }
    close("call");
  }

  void argument_text(const std::string& raw) {
    const std::optional<std::vector<ArgumentText>> members = scan_arguments(raw);
    if (members) {
      for (const ArgumentText& one : *members) argument(one.key, one.type, one.text);
      return;
    }
    open("json", {{"type", "object"}});
    text(raw);
    close("json");
  }

  void argument(const std::string& key, const std::string& type, std::string_view value) {
    open("argument", {{"key", key}, {"type", type}});
    text(value);
    close("argument");
  }

  // Renders the run of tool messages that begins at `begin`; returns where it ends.
  size_t tool_results(size_t begin) {
    const Json& messages = request_.messages;
    struct Result {
      size_t message;
      std::optional<size_t> call;
    };
    std::vector<Result> run;
    for (size_t i = begin; i < messages.size() && messages[i]["role"] == "tool"; ++i) {
      run.push_back({i, call_with_id(messages[i]["tool_call_id"])});
    }
    const bool matched = std::all_of(run.begin(), run.end(), [](const Result& r) { return r.call.has_value(); });
    if (matched) {
      std::stable_sort(run.begin(), run.end(), [](const Result& a, const Result& b) { return *a.call < *b.call; });
    }
    for (const Result& result : run) {
      const Json& message = messages[result.message];
      const std::string name = matched ? call_name(*result.call) : result_name(message, result.message);
      ++results_;
      open("message", {{"role", "tool"}, {"tool", name}, {"index", std::to_string(results_)}});
      content(message);
      end_message();
    }
    return begin + run.size();
  }

  std::optional<size_t> call_with_id(const Json& id) const {
    const auto found = call_of_id_.find(id.get_ref<const std::string&>());
    return found == call_of_id_.end() ? std::nullopt : std::optional(found->second);
  }

  std::string call_name(size_t i) const { return (*calls_)[i]["function"]["name"].get<std::string>(); }

  // The name of a result in a run that does not fit the calls.
  std::string result_name(const Json& message, size_t index) const {
    for (const char* key : {"tool", "name"}) {
      if (std::string name = text_of(field(message, key)); !name.empty()) return name;
    }
    if (calls_ != nullptr && results_ < calls_->size()) return call_name(results_);
    throw BadInput(fmt::format(
        "messages[{}].tool_call_id: matches no call of the assistant message before it, and the message has no name",
        index));
  }

  const ChatRequest& request_;
  std::vector<Segment> out_;
  const Json* calls_ = nullptr;                              // of the last assistant message
  size_t results_ = 0;                                       // tool messages since then
  std::unordered_map<std::string_view, size_t> call_of_id_;  // into calls_; of several with one id the first
};

}  // namespace

std::vector<Segment> render_chat(const ChatRequest& request) {
  check_chat(request);
  return Renderer(request).run();
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const ChatRequest& request) {
  const SpecialTokens& special = tokenizer.special();
  if (special.open < 0 || special.close < 0 || special.sep < 0 || special.end_of_msg < 0) {
    throw BadInput(
        "chat: this model's tokenizer lacks <|open|>, <|close|>, <|sep|> or <|end_of_msg|>; use plain completion");
  }
  std::vector<TokenId> ids;
  for (const Segment& segment : render_chat(request)) {
    switch (segment.marker) {
      case Marker::open:
        ids.push_back(special.open);
        break;
      case Marker::close:
        ids.push_back(special.close);
        break;
      case Marker::sep:
        ids.push_back(special.sep);
        break;
      case Marker::end_of_msg:
        ids.push_back(special.end_of_msg);
        break;
      case Marker::none: {
        const std::vector<TokenId> part = tokenizer.encode(segment.text);
        ids.insert(ids.end(), part.begin(), part.end());
      }
    }
  }
  return ids;
}

OutputParser::Channel chat_stub_channel(const ChatRequest& request) {
  return request.thinking ? OutputParser::Channel::think : OutputParser::Channel::response;
}

}  // namespace trireme::text
