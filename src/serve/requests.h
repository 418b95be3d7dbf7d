// Bodies of the API's requests, read and checked. Nothing here knows the engine's state: whether a prompt fits is
// checked later.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/config.h"
#include "engine/request.h"
#include "serve/api_error.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace trireme::serve {

// What a request that says nothing gets: the model's own, or K3's.
struct SamplingDefaults {
  float temperature = 1.0F;
  float top_p = 0.95F;
};

// Reads temperature and top_p from dir/generation_config.json if it is there and has them. Throws BadInput that names
// file and key.
SamplingDefaults read_sampling_defaults(const std::filesystem::path& dir);

// The ids that end an answer of this model: those of its config, and the end of a message in its chat format.
std::vector<int32_t> stop_ids(const checkpoint::ModelConfig& config, const text::Tokenizer& tokenizer);

// The seed of a request that names none: from the system's source of randomness.
uint64_t random_seed();

inline constexpr int64_t kMaxChoices = 128;  // n times the prompts of one request

// What the checks need to know of the model and the engine.
struct RequestLimits {
  int64_t vocab = 0;
  SamplingDefaults defaults;
  int64_t max_choices = kMaxChoices;  // fewer if the engine can never hold as many
};

inline constexpr int64_t kMaxTopLogprobs = 20;
inline constexpr int64_t kMaxStops = 64;
inline constexpr int64_t kMaxStopBytes = 1024;    // of one stop string
inline constexpr int64_t kCompletionTokens = 16;  // most of /v1/completions without max_tokens, as OpenAI has it

// Fields that chat and text completions share. `sampling.stop_ids` holds the request's own stop_token_ids;
// `sampling.seed` and `sampling.max_tokens` are set when the prompt is known.
struct CommonRequest {
  std::optional<std::string> model;
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage so far in every chunk
  std::optional<int64_t> max_tokens;
  const char* max_tokens_field = "max_tokens";  // where it came from, for errors
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int32_t priority = 0;
  engine::SamplingParams sampling;
};

struct ChatCompletionRequest : CommonRequest {
  text::ChatRequest chat;
  bool parallel_tool_calls = true;
  bool separate_reasoning = true;  // false: reasoning is put into content
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : CommonRequest {
  std::vector<Prompt> prompts;
  bool echo = false;
  bool skip_special_tokens = true;
};

struct TokenizeRequest {
  std::optional<std::string> model;
  std::variant<std::string, text::ChatRequest> input;
  bool add_generation_prompt = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::optional<std::string> model;
  std::vector<int32_t> tokens;
};

// All throw ApiError 400 that names the field.
ChatCompletionRequest parse_chat_completion(std::string_view body, const RequestLimits& limits);
CompletionRequest parse_completion(std::string_view body, const RequestLimits& limits);
TokenizeRequest parse_tokenize(std::string_view body);
DetokenizeRequest parse_detokenize(std::string_view body, const RequestLimits& limits);

}  // namespace trireme::serve
