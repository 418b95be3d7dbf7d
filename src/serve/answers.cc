#include "serve/answers.h"

#include <fmt/format.h>

#include <random>
#include <utility>

namespace trireme::serve {
namespace {

Json calls_json(const std::vector<text::ToolCall>& calls, const std::vector<std::string>& ids, bool with_index) {
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Json call;
    if (with_index) call["index"] = calls[i].index;
    call["id"] = ids.at(i);
    call["type"] = "function";
    call["function"] = {{"name", calls[i].name}, {"arguments", calls[i].arguments}};
    list.push_back(std::move(call));
  }
  return list;
}

Json bytes_json(std::string_view bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  return list;
}

Json chat_token(const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  return {{"token", token_text(tokenizer, token)},
          {"logprob", logprob},
          {"bytes", bytes_json(tokenizer.token_bytes(token))}};
}

Json chat_logprobs(const text::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens) {
  Json content = Json::array();
  for (const engine::OutputToken& token : tokens) {
    Json entry = chat_token(tokenizer, token.token, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const auto& best : token.top) entry["top_logprobs"].push_back(chat_token(tokenizer, best.token, best.logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

Json completion_logprobs(const text::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens,
                         int64_t& text_offset) {
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  for (const engine::OutputToken& token : tokens) {
    json["tokens"].push_back(token_text(tokenizer, token.token));
    json["token_logprobs"].push_back(token.logprob);
    json["text_offset"].push_back(text_offset);
    text_offset += static_cast<int64_t>(tokenizer.token_bytes(token.token).size());
    Json top = Json::object();
    for (const auto& best : token.top) top[token_text(tokenizer, best.token)] = best.logprob;
    top[token_text(tokenizer, token.token)] = token.logprob;
    json["top_logprobs"].push_back(std::move(top));
  }
  return json;
}

void put_end(Json& choice, const std::optional<ChoiceEnd>& end) {
  choice["finish_reason"] = end ? Json(end->finish_reason) : Json(nullptr);
  if (end) choice["matched_stop"] = end->matched_stop;
}

}  // namespace

std::string random_id(const std::string& prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", 0}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json answer_json(const AnswerHead& head, bool chunk, Json choices) {
  const char* object = head.form == AnswerForm::completion ? "text_completion"
                       : chunk                             ? "chat.completion.chunk"
                                                           : "chat.completion";
  Json json;
  json["id"] = head.id;
  json["object"] = object;
  json["created"] = head.created;
  json["model"] = head.model;
  json["choices"] = std::move(choices);
  return json;
}

Json role_choice(int64_t index) {
  return {{"index", index},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr}};
}

Json delta_choice(AnswerForm form, int64_t index, const text::ParsedDelta& delta,
                  const std::vector<std::string>& call_ids, Json logprobs, const std::optional<ChoiceEnd>& end) {
  Json choice = {{"index", index}};
  if (form == AnswerForm::completion) {
    choice["text"] = delta.content;
  } else {
    Json fields = Json::object();
    if (!delta.reasoning.empty()) fields["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) fields["content"] = delta.content;
    if (!delta.tool_calls.empty()) fields["tool_calls"] = calls_json(delta.tool_calls, call_ids, true);
    choice["delta"] = std::move(fields);
  }
  choice["logprobs"] = std::move(logprobs);
  put_end(choice, end);
  return choice;
}

Json whole_choice(AnswerForm form, int64_t index, const text::ParsedDelta& text,
                  const std::vector<std::string>& call_ids, Json logprobs, const ChoiceEnd& end) {
  Json choice = {{"index", index}};
  if (form == AnswerForm::completion) {
    choice["text"] = text.content;
  } else {
    Json message = {{"role", "assistant"}};
    message["content"] = text.content.empty() && !text.tool_calls.empty() ? Json(nullptr) : Json(text.content);
    message["reasoning_content"] = text.reasoning.empty() ? Json(nullptr) : Json(text.reasoning);
    if (!text.tool_calls.empty()) message["tool_calls"] = calls_json(text.tool_calls, call_ids, false);
    choice["message"] = std::move(message);
  }
  choice["logprobs"] = std::move(logprobs);
  put_end(choice, end);
  return choice;
}

Json logprobs_json(AnswerForm form, const text::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens,
                   int64_t& text_offset) {
  return form == AnswerForm::chat ? chat_logprobs(tokenizer, tokens)
                                  : completion_logprobs(tokenizer, tokens, text_offset);
}

std::string token_text(const text::Tokenizer& tokenizer, int32_t token) {
  const std::string bytes(tokenizer.token_bytes(token));
  // A whole string comes out of the stream at once, unchanged, exactly if it is valid.
  if (text::Utf8Stream stream; stream.push(bytes) == bytes) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string sse(const Json& json) { return "data: " + dump(json) + "\n\n"; }

}  // namespace trireme::serve
