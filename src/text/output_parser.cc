#include "text/output_parser.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "text/json_text.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

// Where ordinary ids go. `tools` and `call` are containers whose own text is dropped.
enum class Place { outside, think, response, tools, call, argument, json };

std::string replace_all(std::string_view text, std::string_view from, char to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

// What escaping did, backwards: quotes first, ampersands second.
std::string unescape_attribute(std::string_view value) {
  return replace_all(replace_all(value, "&quot;", '"'), "&amp;", '&');
}

// `tag key="value" key="value"`.
struct Header {
  std::string tag;
  std::vector<std::pair<std::string, std::string>> attributes;

  explicit Header(std::string_view text) {
    const auto trim = [](std::string_view s) {
      while (!s.empty() && std::string_view(" \n").find(s.front()) != std::string_view::npos) s.remove_prefix(1);
      while (!s.empty() && std::string_view(" \n").find(s.back()) != std::string_view::npos) s.remove_suffix(1);
      return s;
    };
    text = trim(text);
    size_t end = std::min(text.find(' '), text.size());
    tag = text.substr(0, end);
    text.remove_prefix(end);
    while (true) {
      const size_t equals = text.find("=\"");
      if (equals == std::string_view::npos) return;
      end = text.find('"', equals + 2);
      if (end == std::string_view::npos) return;
      attributes.emplace_back(trim(text.substr(0, equals)),
                              unescape_attribute(text.substr(equals + 2, end - equals - 2)));
      text.remove_prefix(end + 1);
    }
  }

  std::string attribute(std::string_view key) const {
    for (const auto& [name, value] : attributes) {
      if (name == key) return value;
    }
    return {};
  }
};

// An argument's value as JSON text.
std::string json_value(const std::string& type, const std::string& text) {
  if (type == "string" || !is_json(text)) return json_quote(text);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

struct OutputParser::State {
  const Tokenizer* tokenizer;
  Place place;
  bool finished = false;
  int calls = 0;

  enum class Collecting { nothing, open, close } collecting = Collecting::nothing;
  std::string header;  // bytes between a marker and its separator

  Utf8Stream visible;  // of the channel that is streamed
  std::string value;   // bytes of the argument or json block

  std::string call_name;
  std::vector<std::pair<std::string, std::string>> arguments;  // key, JSON text
  std::optional<std::string> json_block;
  std::string key;
  std::string type;

  void show(ParsedDelta* delta, const std::string& text) const {
    if (place == Place::think) delta->reasoning += text;
    if (place == Place::response) delta->content += text;
  }

  void take_text(ParsedDelta* delta, std::string_view bytes) {
    if (collecting != Collecting::nothing) {
      header += bytes;
    } else if (place == Place::think || place == Place::response) {
      show(delta, visible.push(bytes));
    } else if (place == Place::argument || place == Place::json) {
      value += bytes;
    }
  }

  void end_value() {
    const std::string text = replace_invalid(value);
    value.clear();
    if (place == Place::json) {
      json_block = text;
    } else if (place == Place::argument) {
      std::string json = json_value(type, text);
      const auto same = std::find_if(arguments.begin(), arguments.end(), [&](const auto& a) { return a.first == key; });
      if (same == arguments.end()) {
        arguments.emplace_back(key, std::move(json));
      } else {
        same->second = std::move(json);
      }
    }
  }

  void begin_call(std::string name) {
    call_name = std::move(name);
    arguments.clear();
    json_block.reset();
    value.clear();
    place = Place::call;
  }

  void end_call(ParsedDelta* delta) {
    place = Place::tools;
    if (call_name.empty()) return;
    std::string text = "{";
    for (const auto& [name, json] : arguments) {
      if (text.size() > 1) text += ", ";
      text += json_quote(name) + ": " + json;
    }
    text += "}";
    delta->tool_calls.push_back({calls++, call_name, json_block ? *json_block : text});
  }

  bool in_call() const { return place == Place::call || place == Place::argument || place == Place::json; }

  void opened(const Header& tag) {
    if (tag.tag == "think") place = Place::think;
    if (tag.tag == "response") place = Place::response;
    if (tag.tag == "tools") place = Place::tools;
    if (tag.tag == "message") place = Place::outside;
    if (tag.tag == "call") begin_call(tag.attribute("tool"));
    if ((tag.tag == "argument" || tag.tag == "json") && in_call()) {
      end_value();
      key = tag.attribute("key");
      type = tag.attribute("type");
      place = tag.tag == "json" ? Place::json : Place::argument;
    }
  }

  void closed(ParsedDelta* delta, const Header& tag) {
    const bool channel =
        (tag.tag == "think" && place == Place::think) || (tag.tag == "response" && place == Place::response);
    if (channel || tag.tag == "tools" || tag.tag == "message") place = Place::outside;
    if ((tag.tag == "argument" && place == Place::argument) || (tag.tag == "json" && place == Place::json)) {
      end_value();
      place = Place::call;
    }
    if (tag.tag == "call" && in_call()) {
      end_value();
      end_call(delta);
    }
  }

  void marker(ParsedDelta* delta, Collecting what) {
    show(delta, visible.flush());
    collecting = what;
    header.clear();
  }

  void separator(ParsedDelta* delta) {
    const Header tag(replace_invalid(header));
    const Collecting what = std::exchange(collecting, Collecting::nothing);
    if (what == Collecting::open) opened(tag);
    if (what == Collecting::close) closed(delta, tag);
  }
};

OutputParser::OutputParser(const Tokenizer& tokenizer, Channel start) : state_(std::make_unique<State>()) {
  state_->tokenizer = &tokenizer;
  state_->place = start == Channel::think      ? Place::think
                  : start == Channel::response ? Place::response
                                               : Place::outside;
}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

ParsedDelta OutputParser::push(TokenId id) {
  ParsedDelta delta;
  State& state = *state_;
  if (state.finished || id < 0) return delta;
  const SpecialTokens& special = state.tokenizer->special();
  if (id == special.end_of_msg || id == special.eos) {
    state.marker(&delta, State::Collecting::nothing);
    state.finished = true;
  } else if (id == special.open) {
    state.marker(&delta, State::Collecting::open);
  } else if (id == special.close) {
    state.marker(&delta, State::Collecting::close);
  } else if (id == special.sep) {
    state.separator(&delta);
  } else if (!state.tokenizer->is_special(id)) {
    state.take_text(&delta, state.tokenizer->token_bytes(id));
  }
  return delta;
}

ParsedDelta OutputParser::flush() {
  ParsedDelta delta;
  state_->show(&delta, state_->visible.flush());
  return delta;
}

bool OutputParser::in_reasoning() const {
  return !state_->finished && state_->place == Place::think && state_->collecting == State::Collecting::nothing;
}
int OutputParser::tool_calls() const { return state_->calls; }
bool OutputParser::finished() const { return state_->finished; }

}  // namespace trireme::text
