#include "serve/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/error.h"
#include "base/version.h"
#include "ops/mla.h"
#include "text/chat.h"

namespace trireme::serve {
namespace {

constexpr double kHungSeconds = 120.0;                   // a round that takes longer than this counts as a hang
constexpr std::string_view kModelsPath = "/v1/models/";  // before a model's name

HttpResponse json_response(const Json& json, int status = 200) {
  return {.status = status, .body = dump(json), .headers = {}};
}

HttpResponse error_response(const ApiError& error) { return json_response(error_json(error), error.status); }

// Takes the same time wherever the two differ.
bool same_secret(std::string_view given, std::string_view expected) {
  size_t difference = given.size() ^ expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected[i % expected.size()]);
  return difference == 0;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// "a%2Fb" -> "a/b". A % that no two hexadecimal digits follow stands for itself.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_value(text[i + 2]) : -1;
    out += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
    if (low >= 0) i += 2;
  }
  return out;
}

std::vector<text::TokenId> encode(const text::Tokenizer& tokenizer, const std::string& text, const std::string& field) {
  try {
    return tokenizer.encode(text);
  } catch (const BadInput& error) {
    throw ApiError(400, field + ": " + error.what(), field);
  }
}

std::vector<text::TokenId> encode(const text::Tokenizer& tokenizer, const text::ChatRequest& chat) {
  try {
    return text::encode_chat(tokenizer, chat);
  } catch (const BadInput& error) {
    throw ApiError(400, error.what(), "messages");
  }
}

}  // namespace

struct Api::Route {
  std::string_view path;
  bool post;  // otherwise GET
  bool open;  // needs no key
};

const Api::Route* Api::find_route(const std::string& path) {
  static constexpr std::array kRoutes = {Route{"/v1/chat/completions", true, false},
                                         Route{"/v1/completions", true, false},
                                         Route{"/tokenize", true, false},
                                         Route{"/detokenize", true, false},
                                         Route{"/v1/models", false, false},
                                         Route{"/health", false, true},
                                         Route{"/metrics", false, true},
                                         Route{"/version", false, true}};
  static constexpr Route kOneModel{kModelsPath, false, false};
  for (const Route& route : kRoutes) {
    if (path == route.path) return &route;
  }
  return path.starts_with(kModelsPath) && path.size() > kModelsPath.size() ? &kOneModel : nullptr;
}

Api::Api(ApiOptions options, GenerationContext context)
    : options_(std::move(options)),
      context_(context),
      limits_{std::min(context.engine.config().vocab, context.tokenizer.vocab_size()), options_.defaults,
              std::min(kMaxChoices, options_.max_choices)},
      started_(std::time(nullptr)) {}

bool Api::authorized(const std::string& header) const {
  if (options_.api_key.empty()) return true;
  constexpr std::string_view kScheme = "bearer";  // in any case, then one space or more
  const auto same_letter = [](char lower, char given) { return lower == (given | 0x20); };
  if (!std::equal(kScheme.begin(), kScheme.end(), header.begin(),
                  header.begin() + static_cast<std::ptrdiff_t>(std::min(header.size(), kScheme.size())), same_letter)) {
    return false;
  }
  const std::string_view rest = std::string_view(header).substr(kScheme.size());
  const size_t key = std::min(rest.find_first_not_of(' '), rest.size());
  return key > 0 && same_secret(rest.substr(key), options_.api_key);
}

std::optional<HttpResponse> Api::screen(const HttpRequest& request) {
  const Route* route = find_route(request.path);
  if (route == nullptr) {
    const std::string path = request.path.substr(0, 200);
    return error_response(
        ApiError(404, fmt::format("there is no {}; see /v1/models and /v1/chat/completions", path), "", "not_found"));
  }
  const bool allowed = route->post ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (!allowed) {
    const std::string allow = route->post ? "POST" : "GET, HEAD";
    HttpResponse response = error_response(
        ApiError(405, fmt::format("{} does not take {}, only {}", request.path, request.method.substr(0, 40), allow),
                 "", "method_not_allowed"));
    response.headers.emplace_back("Allow", allow);
    return response;
  }
  if (!route->open && !authorized(request.authorization)) {
    HttpResponse response = error_response(
        ApiError(401, "the API key is missing or wrong; send it as: Authorization: Bearer KEY", "", "invalid_api_key"));
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  return std::nullopt;
}

HttpResponse Api::protocol_error(int status, const std::string& message) {
  return error_response(ApiError(status, message));
}

void Api::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (request.method != "POST") {
    exchange->send(get(request));
    return;
  }
  context_.workers.post(
      [this, request = std::move(request), exchange = std::move(exchange)] { post(request, exchange); });
}

HttpResponse Api::get(const HttpRequest& request) const {
  try {
    if (request.path == "/health") return health();
    if (request.path == "/metrics") return metrics();
    if (request.path == "/version") return version();
    return models(request.path);
  } catch (const ApiError& error) {
    return error_response(error);
  } catch (const std::exception& error) {
    return error_response(ApiError(500, error.what()));
  }
}

void Api::post(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  if (exchange->abandoned()) return;
  try {
    if (request.path == "/v1/chat/completions") {
      chat_completion(request.body, exchange);
    } else if (request.path == "/v1/completions") {
      completion(request.body, exchange);
    } else if (request.path == "/tokenize") {
      exchange->send(tokenize(request.body));
    } else {
      exchange->send(detokenize(request.body));
    }
  } catch (const ApiError& error) {
    exchange->send(error_response(error));
  } catch (const BadInput& error) {
    exchange->send(error_response(ApiError(400, error.what())));
  } catch (const std::exception& error) {
    exchange->send(error_response(ApiError(500, error.what())));
  }
}

HttpResponse Api::health() const {
  const engine::EngineStats stats = context_.engine.stats();
  if (!stats.dead.empty()) throw ApiError(503, stats.dead, "", "engine_down");
  const double age = stats.last_round_age_s;
  if (age > kHungSeconds)
    throw ApiError(503, fmt::format("the engine has not come round for {:.0f} s", age), "", "engine_hung");
  return json_response({{"status", "ok"}});
}

HttpResponse Api::metrics() const {
  return {.status = 200,
          .content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = context_.metrics.render(context_.engine.stats()),
          .headers = {}};
}

HttpResponse Api::version() const { return json_response({{"version", std::string(kVersion)}}); }

HttpResponse Api::models(const std::string& path) const {
  const Json model = {{"id", options_.model_name}, {"object", "model"},           {"created", started_},
                      {"owned_by", "trireme"},     {"root", options_.model_name}, {"max_model_len", max_context()}};
  if (!path.starts_with(kModelsPath)) return json_response({{"object", "list"}, {"data", Json::array({model})}});
  check_model(percent_decoded(std::string_view(path).substr(kModelsPath.size())));
  return json_response(model);
}

void Api::check_model(const std::optional<std::string>& model) const {
  if (!model || *model == options_.model_name) return;
  throw ApiError(
      404,
      fmt::format("model: there is no model {}; this server has {}", dump(model->substr(0, 200)), options_.model_name),
      "model", "model_not_found");
}

int64_t Api::max_context() const { return context_.engine.stats().request_tokens; }

GenerationPlan Api::plan(AnswerForm form, CommonRequest common) const {
  GenerationPlan plan;
  plan.head = {form, random_id(form == AnswerForm::chat ? "chatcmpl-" : "cmpl-"), std::time(nullptr),
               options_.model_name};
  plan.own_stop_ids = common.sampling.stop_ids;
  if (!common.ignore_eos) {
    const std::vector<int32_t> ids = stop_ids(context_.engine.config(), context_.tokenizer);
    common.sampling.stop_ids.insert(common.sampling.stop_ids.end(), ids.begin(), ids.end());
  }
  plan.decoder.stop = common.stop;
  plan.common = std::move(common);
  return plan;
}

void Api::fit(GenerationPlan& plan, const char* field) const {
  const int64_t context = max_context();
  int64_t longest = 0;
  for (const auto& prompt : plan.prompts) {
    if (prompt.empty()) throw ApiError(400, fmt::format("{}: must have at least one token", field), field);
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  if (longest >= context) {
    throw ApiError(400,
                   fmt::format("{}: the prompt has {} tokens, which leaves no room in a context of {} tokens", field,
                               longest, context),
                   field, "context_length_exceeded");
  }
  const int64_t left = context - longest;
  const std::pair<const char*, int64_t> counts[] = {{plan.common.max_tokens_field, plan.common.max_tokens.value_or(0)},
                                                    {"min_tokens", plan.common.sampling.min_tokens}};
  for (const auto& [name, count] : counts) {
    if (count <= left) continue;
    throw ApiError(
        400,
        fmt::format("{}: {} more tokens do not fit: the prompt has {} and the context {}, so at most {} are left", name,
                    count, longest, context, left),
        name, "context_length_exceeded");
  }
  int64_t absent = left;
  if (plan.head.form == AnswerForm::completion)
    absent = std::min(left, std::max(kCompletionTokens, plan.common.sampling.min_tokens));
  plan.common.sampling.max_tokens = plan.common.max_tokens.value_or(absent);
}

void Api::chat_completion(const std::string& body, const std::shared_ptr<Exchange>& exchange) {
  ChatCompletionRequest request = parse_chat_completion(body, limits_);
  check_model(request.model);
  GenerationPlan made = plan(AnswerForm::chat, request);
  made.prompts.push_back(encode(context_.tokenizer, request.chat));
  made.decoder.channel = text::chat_stub_channel(request.chat);
  made.decoder.separate_reasoning = request.separate_reasoning;
  made.decoder.allow_tool_calls = request.chat.tool_choice != "none";
  made.decoder.one_tool_call = !request.parallel_tool_calls && made.decoder.allow_tool_calls;
  fit(made, "messages");
  std::make_shared<Generation>(context_, std::move(made), exchange)->start();
}

void Api::completion(const std::string& body, const std::shared_ptr<Exchange>& exchange) {
  CompletionRequest request = parse_completion(body, limits_);
  check_model(request.model);
  GenerationPlan made = plan(AnswerForm::completion, request);
  made.decoder.skip_special_tokens = request.skip_special_tokens;
  for (const Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      made.prompts.push_back(encode(context_.tokenizer, *text, "prompt"));
      if (request.echo) made.echoes.push_back(*text);
    } else {
      made.prompts.push_back(std::get<std::vector<int32_t>>(prompt));
      if (request.echo) made.echoes.push_back(context_.tokenizer.decode(made.prompts.back(), false));
    }
  }
  fit(made, "prompt");
  std::make_shared<Generation>(context_, std::move(made), exchange)->start();
}

HttpResponse Api::tokenize(const std::string& body) const {
  const TokenizeRequest request = parse_tokenize(body);
  check_model(request.model);
  std::vector<text::TokenId> tokens;
  if (const auto* text = std::get_if<std::string>(&request.input)) {
    tokens = encode(context_.tokenizer, *text, "prompt");
  } else {
    tokens = encode(context_.tokenizer, std::get<text::ChatRequest>(request.input));
    // The generation prompt is what follows the last message's end; no text can look like that marker.
    const auto last = std::find(tokens.rbegin(), tokens.rend(), context_.tokenizer.special().end_of_msg);
    if (!request.add_generation_prompt && last != tokens.rend()) tokens.erase(last.base(), tokens.end());
  }
  Json json = {{"count", tokens.size()}, {"max_model_len", max_context()}, {"tokens", tokens}, {"token_strs", nullptr}};
  if (request.return_token_strs) {
    json["token_strs"] = Json::array();
    for (const text::TokenId token : tokens) json["token_strs"].push_back(token_text(context_.tokenizer, token));
  }
  return json_response(json);
}

HttpResponse Api::detokenize(const std::string& body) const {
  const DetokenizeRequest request = parse_detokenize(body, limits_);
  check_model(request.model);
  text::Utf8Stream stream;
  std::string text = stream.push(context_.tokenizer.decode(request.tokens, false));
  return json_response({{"prompt", text + stream.flush()}});
}

}  // namespace trireme::serve
