#include "serve/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "serve/chat_fields.h"
#include "serve/json_fields.h"

namespace trireme::serve {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<int32_t> token_ids(const Json& array, const std::string& path, int64_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& value : array) {
    // The path of an element is only worth building for an error, so a good one is recognised first.
    if (value.is_number_integer()) {
      const int64_t id = value.get<int64_t>();
      if (id >= 0 && id < vocab) {
        ids.push_back(static_cast<int32_t>(id));
        continue;
      }
    }
    integer_value(value, fmt::format("{}[{}]", path, ids.size()), 0, vocab - 1);
    throw ApiError(400, path + ": holds an id outside the vocabulary", path);
  }
  return ids;
}

void read_stops(const Fields& fields, const RequestLimits& limits, CommonRequest& request) {
  if (const Json* stop = fields.find("stop"); stop != nullptr) {
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    if (static_cast<int64_t>(list.size()) > kMaxStops) {
      throw ApiError(400, fmt::format("stop: has {} strings, at most {} are allowed", list.size(), kMaxStops), "stop");
    }
    for (const Json& value : list) {
      if (!value.is_string())
        throw ApiError(400, "stop: must be a string or an array of strings, not " + shown(value), "stop");
      std::string text = value.get<std::string>();
      if (text.empty() || static_cast<int64_t>(text.size()) > kMaxStopBytes) {
        throw ApiError(400,
                       fmt::format("stop: a stop string must have 1 to {} bytes, not {}", kMaxStopBytes, text.size()),
                       "stop");
      }
      request.stop.push_back(std::move(text));
    }
  }
  if (const Json* ids = fields.array("stop_token_ids"); ids != nullptr) {
    request.sampling.stop_ids = token_ids(*ids, fields.path("stop_token_ids"), limits.vocab);
  }
}

void read_logit_bias(const Fields& fields, const RequestLimits& limits, engine::SamplingParams& sampling) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  std::set<int64_t> seen;
  for (const auto& [key, value] : bias->items()) {
    const std::string shown_key = shown(Json(key));
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos ||
        std::stoll(key) >= limits.vocab || !seen.insert(std::stoll(key)).second) {
      throw ApiError(
          400,
          fmt::format("logit_bias: keys must be different token ids from 0 to {}, not {}", limits.vocab - 1, shown_key),
          "logit_bias");
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100.0)) {
      throw ApiError(
          400,
          fmt::format("logit_bias: the value of {} must be a number from -100 to 100, not {}", shown_key, shown(value)),
          "logit_bias");
    }
    sampling.logit_bias.emplace_back(static_cast<int32_t>(std::stoll(key)), value.get<float>());
  }
}

void read_sampling(const Fields& fields, const RequestLimits& limits, CommonRequest& request) {
  engine::SamplingParams& sampling = request.sampling;
  const auto real = [&](const char* name, double low, double high, float fallback) {
    return static_cast<float>(fields.number(name, low, high).value_or(fallback));
  };
  sampling.temperature = real("temperature", 0.0, 2.0, limits.defaults.temperature);
  sampling.top_p = real("top_p", 0.0, 1.0, limits.defaults.top_p);
  if (!(sampling.top_p > 0)) fields.refuse("top_p", "a number above 0 and up to 1");
  sampling.top_k = static_cast<int32_t>(fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0));
  if (sampling.top_k < 0) sampling.top_k = 0;  // -1 is another way to say "all"
  sampling.min_p = real("min_p", 0.0, 1.0, 0.0F);
  sampling.repetition_penalty = real("repetition_penalty", 0.0, 10.0, 1.0F);
  if (!(sampling.repetition_penalty > 0)) fields.refuse("repetition_penalty", "a number above 0 and up to 10");
  sampling.presence_penalty = real("presence_penalty", -2.0, 2.0, 0.0F);
  sampling.frequency_penalty = real("frequency_penalty", -2.0, 2.0, 0.0F);
  read_logit_bias(fields, limits, sampling);
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), kMax)) {
    request.seed = static_cast<uint64_t>(*seed);
  }
  sampling.min_tokens = fields.integer("min_tokens", 0, kMax).value_or(0);
}

void read_stream(const Fields& fields, CommonRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* value = fields.object("stream_options");
  if (value == nullptr) return;
  if (!request.stream) throw ApiError(400, "stream_options: only allowed when stream is true", "stream_options");
  const Fields options(*value, fields.path("stream_options"));
  request.include_usage = options.boolean("include_usage").value_or(false);
  request.continuous_usage = options.boolean("continuous_usage_stats").value_or(false);
}

void read_common(const Fields& fields, const RequestLimits& limits, CommonRequest& request) {
  request.model = fields.string("model");
  request.n = fields.integer("n", 1, limits.max_choices).value_or(1);
  read_stream(fields, request);
  read_sampling(fields, limits, request);
  read_stops(fields, limits, request);
  request.max_tokens = fields.integer("max_tokens", 1, kMax);
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.priority = static_cast<int32_t>(
      fields.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()).value_or(0));
  (void)fields.string("user");
  // These would change the answer, and ignoring them would hide that it was not done.
  for (const char* name :
       {"regex", "ebnf", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag"}) {
    if (fields.find(name) != nullptr)
      throw ApiError(400, fmt::format("{}: constrained decoding is not supported", name), name);
  }
}

void check_token_counts(const CommonRequest& request) {
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    throw ApiError(400,
                   fmt::format("min_tokens: {} is more than {}, which is {}", request.sampling.min_tokens,
                               request.max_tokens_field, *request.max_tokens),
                   "min_tokens");
  }
}

std::vector<Prompt> read_prompts(const Fields& fields, const RequestLimits& limits) {
  const std::string wanted = "a string, an array of strings, an array of token ids or an array of such arrays";
  const Json* value = fields.find("prompt");
  if (value == nullptr) fields.refuse("prompt", wanted);
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) fields.refuse("prompt", wanted);
  if (value->empty()) throw ApiError(400, "prompt: must not be empty", "prompt");
  if (value->front().is_number()) return {token_ids(*value, fields.path("prompt"), limits.vocab)};
  if (static_cast<int64_t>(value->size()) > limits.max_choices) {
    throw ApiError(400,
                   fmt::format("prompt: has {} prompts, at most {} are allowed", value->size(), limits.max_choices),
                   "prompt");
  }
  std::vector<Prompt> prompts;
  for (const Json& item : *value) {
    const std::string path = fmt::format("prompt[{}]", prompts.size());
    if (item.is_string() && value->front().is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (item.is_array() && value->front().is_array()) {
      prompts.emplace_back(token_ids(item, path, limits.vocab));
    } else {
      throw ApiError(400, fmt::format("prompt: must be {}, not an array with {}", wanted, shown(item)), "prompt");
    }
  }
  return prompts;
}

}  // namespace

SamplingDefaults read_sampling_defaults(const std::filesystem::path& dir) {
  SamplingDefaults defaults;
  const std::filesystem::path file = dir / "generation_config.json";
  if (!has_entry(file)) return defaults;
  const std::string text = read_text_file(file, 1 << 20);
  try {
    const Json json = parse_body(text);
    const Fields fields(json, "");
    defaults.temperature = static_cast<float>(fields.number("temperature", 0.0, 2.0).value_or(defaults.temperature));
    defaults.top_p = static_cast<float>(fields.number("top_p", 1e-6, 1.0).value_or(defaults.top_p));
  } catch (const ApiError& error) {
    throw BadInput(fmt::format("{}: {}", file.string(), error.what()));
  }
  return defaults;
}

std::vector<int32_t> stop_ids(const checkpoint::ModelConfig& config, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const int64_t id : config.eos_tokens) ids.push_back(static_cast<int32_t>(id));
  const int32_t end = tokenizer.special().end_of_msg;
  if (end >= 0 && std::find(ids.begin(), ids.end(), end) == ids.end()) ids.push_back(end);
  return ids;
}

uint64_t random_seed() { return (uint64_t{std::random_device{}()} << 32) | std::random_device{}(); }

ChatCompletionRequest parse_chat_completion(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body);
  const Fields fields(json, "");
  ChatCompletionRequest request;
  read_common(fields, limits, request);
  // The newer name of the two wins.
  if (const auto newer = fields.integer("max_completion_tokens", 1, kMax)) {
    request.max_tokens = newer;
    request.max_tokens_field = "max_completion_tokens";
  }
  check_token_counts(request);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !logprobs)
    throw ApiError(400, "top_logprobs: only allowed when logprobs is true", "top_logprobs");
  if (logprobs) request.sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  request.separate_reasoning = fields.boolean("separate_reasoning").value_or(true);
  request.chat = parse_chat_fields(fields);
  return request;
}

CompletionRequest parse_completion(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body);
  const Fields fields(json, "");
  CompletionRequest request;
  read_common(fields, limits, request);
  check_token_counts(request);
  request.prompts = read_prompts(fields, limits);
  if (static_cast<int64_t>(request.prompts.size()) * request.n > limits.max_choices) {
    throw ApiError(400,
                   fmt::format("n: {} prompts times n = {} make more than {} answers", request.prompts.size(),
                               request.n, limits.max_choices),
                   "n");
  }
  request.echo = fields.boolean("echo").value_or(false);
  request.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  if (const auto top = fields.integer("logprobs", 0, kMaxTopLogprobs))
    request.sampling.top_logprobs = static_cast<int32_t>(*top);
  if (request.echo && request.sampling.top_logprobs >= 0) {
    throw ApiError(400, "echo: log probabilities of the prompt are not supported; leave out echo or logprobs", "echo");
  }
  if (const auto best_of = fields.integer("best_of", 1, kMaxChoices); best_of && *best_of != request.n) {
    throw ApiError(400, fmt::format("best_of: must equal n, which is {}, not {}", request.n, *best_of), "best_of");
  }
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty()) {
    throw ApiError(400, "suffix: inserting text before a suffix is not supported", "suffix");
  }
  return request;
}

TokenizeRequest parse_tokenize(std::string_view body) {
  const Json json = parse_body(body);
  const Fields fields(json, "");
  TokenizeRequest request;
  request.model = fields.string("model");
  (void)fields.boolean("add_special_tokens");  // K3 puts nothing before a prompt
  request.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  request.return_token_strs = fields.boolean("return_token_strs").value_or(false);
  const auto prompt = fields.string("prompt");
  if (prompt && fields.find("messages") != nullptr)
    throw ApiError(400, "prompt: give either prompt or messages, not both", "prompt");
  if (prompt) {
    request.input = *prompt;
  } else if (fields.find("messages") != nullptr) {
    request.input = parse_chat_fields(fields);
  } else {
    throw ApiError(400, "prompt: must be a string, or messages an array; both are absent", "prompt");
  }
  return request;
}

DetokenizeRequest parse_detokenize(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body);
  const Fields fields(json, "");
  DetokenizeRequest request;
  request.model = fields.string("model");
  const Json* tokens = fields.array("tokens");
  if (tokens == nullptr) fields.refuse("tokens", "an array of token ids");
  request.tokens = token_ids(*tokens, fields.path("tokens"), limits.vocab);
  return request;
}

}  // namespace trireme::serve
