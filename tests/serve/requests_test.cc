// What the API accepts and refuses: every refusal names the field.
#include "serve/requests.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "serve/json_fields.h"

namespace trireme::serve {
namespace {

const RequestLimits kLimits{2048, {1.0F, 0.95F}};

struct Refusal {
  const char* body;
  const char* named;  // must be in the message
};

void expect_refused(const Refusal& refusal, const std::function<void(const std::string&)>& parse) {
  try {
    parse(refusal.body);
    ADD_FAILURE() << "accepted: " << refusal.body;
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << refusal.body;
    EXPECT_NE(std::string(error.what()).find(refusal.named), std::string::npos)
        << refusal.body << " -> " << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

// A chat body with good messages and one more member.
std::string chat_with(const std::string& member) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + member + "}";
}
std::string completion_with(const std::string& member) { return R"({"prompt":"hi",)" + member + "}"; }

TEST(Requests, RefusesMalformedBodies) {
  const Refusal refusals[] = {
      {"", "body"},
      {"{", "body"},
      {"[]", "body: must be a JSON object, not an array"},
      {"\"text\"", "body"},
      {"null", "body"},
      {"{} {}", "body"},
      {"{\"messages\": 1e999}", "body"},
      {"{\"a\": \"\\ud800\"}", "body"},
      {"{\"a\": \"\xff\"}", "body"},
      {"{\"a\": \"\xc3\x28\"}", "body"},
      {"{\"a\": nan}", "body"},
      {"{'a': 1}", "body"},
      {"{\"a\": 01}", "body"},
      {"{\"a\": 1,}", "body"},
  };
  for (const Refusal& refusal : refusals) {
    expect_refused(refusal, [](const std::string& body) { parse_chat_completion(body, kLimits); });
    expect_refused(refusal, [](const std::string& body) { parse_completion(body, kLimits); });
    expect_refused(refusal, [](const std::string& body) { parse_tokenize(body); });
    expect_refused(refusal, [](const std::string& body) { parse_detokenize(body, kLimits); });
  }
  const std::string with_nul = std::string("{\"a\": \"x") + '\0' + "\"}";
  EXPECT_THROW(parse_body(with_nul), ApiError);
}

// The JSON parser would stop at the NUL byte and take what is before it.
TEST(Requests, NothingMayHideBehindANulByte) {
  const std::string body = chat_with("\"n\":1") + std::string("\0]", 2);
  try {
    (void)parse_chat_completion(body, kLimits);
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_NE(std::string(error.what()).find("a NUL byte at offset"), std::string::npos) << error.what();
  }
}

TEST(Requests, AnUnusableGenerationConfigIsNotTheDefault) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(::testing::TempDir()) / ("generation-config-" + std::to_string(getpid()));
  fs::create_directories(dir);
  EXPECT_EQ(read_sampling_defaults(dir).top_p, SamplingDefaults{}.top_p);
  fs::create_symlink("nowhere", dir / "generation_config.json");
  EXPECT_THROW((void)read_sampling_defaults(dir), BadInput);
  fs::remove(dir / "generation_config.json");
  ASSERT_EQ(mkfifo((dir / "generation_config.json").c_str(), 0600), 0);
  EXPECT_THROW((void)read_sampling_defaults(dir), BadInput);
  fs::remove_all(dir);
}

TEST(Requests, BoundsDepthAndWidth) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']') +
           "}";
  };
  EXPECT_NO_THROW(parse_body(nested(kMaxJsonDepth - 1)));
  EXPECT_THROW(parse_body(nested(kMaxJsonDepth)), ApiError);
  EXPECT_THROW(parse_body(std::string(1 << 20, '[')), ApiError);
  // Brackets in strings do not count, also behind escaped quotes.
  EXPECT_NO_THROW(parse_body("{\"a\": \"\\\"" + std::string(1000, '[') + "\"}"));
  const auto wide = [](int members) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
    return text + "}";
  };
  EXPECT_NO_THROW(parse_body(wide(kMaxJsonMembers)));
  EXPECT_THROW(parse_body(wide(kMaxJsonMembers + 1)), ApiError);
}

TEST(Requests, RefusesChatFields) {
  const Refusal members[] = {
      {R"("model": 3)", "model"},
      {R"("n": 0)", "n: must be an integer from 1"},
      {R"("n": 129)", "n: "},
      {R"("n": "2")", "n: "},
      {R"("n": 1.5)", "n: "},
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": 2.1)", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.01)", "top_p"},
      {R"("top_p": [1])", "top_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.0)", "top_k"},
      {R"("top_k": 99999999999)", "top_k"},
      {R"("min_p": 2)", "min_p"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("presence_penalty": 2.5)", "presence_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("frequency_penalty": true)", "frequency_penalty"},
      {R"("logit_bias": [1])", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"2048": 1})", "logit_bias"},
      {R"("logit_bias": {"7": 101})", "logit_bias"},
      {R"("logit_bias": {"7": "1"})", "logit_bias"},
      {R"("logit_bias": {"7": 1, "07": 1})", "logit_bias"},
      {R"("logit_bias": {"99999999999999999999": 1})", "logit_bias"},
      {R"("seed": "x")", "seed"},
      {R"("seed": 1.5)", "seed"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("stop": 3)", "stop"},
      {R"("stop": ["a", 3])", "stop"},
      {R"("stop": "")", "stop"},
      {R"("stop": [""])", "stop"},
      {R"("stop": {"a": 1})", "stop"},
      {R"("stop_token_ids": 3)", "stop_token_ids"},
      {R"("stop_token_ids": ["3"])", "stop_token_ids[0]"},
      {R"("stop_token_ids": [1, 2048])", "stop_token_ids[1]"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": -5)", "max_tokens"},
      {R"("max_tokens": "5")", "max_tokens"},
      {R"("max_completion_tokens": 0)", "max_completion_tokens"},
      {R"("max_completion_tokens": {})", "max_completion_tokens"},
      {R"("min_tokens": -1)", "min_tokens"},
      {R"("min_tokens": 6, "max_tokens": 5)", "min_tokens"},
      {R"("ignore_eos": 1)", "ignore_eos"},
      {R"("stream": "yes")", "stream"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": [])", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("stream": true, "stream_options": {"continuous_usage_stats": "x"})", "stream_options.continuous_usage_stats"},
      {R"("logprobs": 1)", "logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": -1)", "top_logprobs"},
      {R"("top_logprobs": 3)", "top_logprobs"},
      {R"("priority": 1.5)", "priority"},
      {R"("priority": 4294967296)", "priority"},
      {R"("user": 3)", "user"},
      {R"("parallel_tool_calls": "no")", "parallel_tool_calls"},
      {R"("separate_reasoning": "no")", "separate_reasoning"},
      {R"("tools": {})", "tools"},
      {R"("tools": [3])", "tools[0]"},
      {R"("tools": [{"function": {"name": "f"}}])", "tools[0].type"},
      {R"("tools": [{"type": "retrieval"}])", "tools[0].type"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": ""}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}])",
       "tools[0].function.parameters"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}])",
       "tools[1].function.name"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": "any")", "tool_choice"},
      {R"("tool_choice": 3)", "tool_choice"},
      {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice"},
      {R"("response_format": "json")", "response_format"},
      {R"("response_format": {})", "response_format.type"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}})",
       "response_format.json_schema.name"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})",
       "response_format.json_schema.schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}})",
       "response_format.json_schema.schema"},
      {R"("thinking": true)", "thinking"},
      {R"("thinking": {"type": "on"})", "thinking.type"},
      {R"("thinking": {"type": "enabled", "keep": "last"})", "thinking.keep"},
      {R"("thinking": {"effort": "huge"})", "thinking.effort"},
      {R"("reasoning_effort": "minimal")", "reasoning_effort"},
      {R"("reasoning_effort": 3)", "reasoning_effort"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("chat_template_kwargs": {"thinking": "yes"})", "chat_template_kwargs.thinking"},
      {R"("chat_template_kwargs": {"preserve_thinking": false})", "chat_template_kwargs.preserve_thinking"},
      {R"("chat_template_kwargs": {"thinking_effort": "x"})", "chat_template_kwargs.thinking_effort"},
      {R"("regex": "a+")", "regex"},
      {R"("guided_json": {})", "guided_json"},
  };
  for (const Refusal& refusal : members) {
    const std::string body = chat_with(refusal.body);
    expect_refused({body.c_str(), refusal.named},
                   [](const std::string& text) { parse_chat_completion(text, kLimits); });
  }
}

TEST(Requests, RefusesMessages) {
  const Refusal refusals[] = {
      {R"({})", "messages"},
      {R"({"messages": null})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{}]})", "messages[0].role"},
      {R"({"messages": [{"role": 3, "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]})",
       "messages[1].tool_call_id"},
      {R"({"messages": [{"role": "user", "content": "x", "name": 3}]})", "messages[0].name"},
      {R"({"messages": [{"role": "assistant", "tool_calls": {}}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages": [{"role": "user", "content": "", "tools": [{"type": "function", "function": {"name": "f"}}]}]})",
       "messages[0].tools"},
      {R"({"messages": [{"role": "system", "content": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}]})",
       "messages[0].tools"},
      {R"({"tools": [{"type": "function", "function": {"name": "f"}}],
           "messages": [{"role": "system", "tools": [{"type": "function", "function": {"name": "f"}}]}]})",
       "messages[0].tools[0].function.name"},
  };
  for (const Refusal& refusal : refusals) {
    expect_refused(refusal, [](const std::string& text) { parse_chat_completion(text, kLimits); });
  }
}

TEST(Requests, RefusesCompletionFields) {
  const Refusal members[] = {
      {R"("echo": "yes")", "echo"},         {R"("echo": true, "logprobs": 1)", "echo"},
      {R"("logprobs": true)", "logprobs"},  {R"("logprobs": 21)", "logprobs"},
      {R"("suffix": "x")", "suffix"},       {R"("best_of": 2)", "best_of"},
      {R"("best_of": "2")", "best_of"},     {R"("skip_special_tokens": 0)", "skip_special_tokens"},
      {R"("max_tokens": 0)", "max_tokens"}, {R"("n": 200)", "n: "},
  };
  for (const Refusal& refusal : members) {
    const std::string body = completion_with(refusal.body);
    expect_refused({body.c_str(), refusal.named}, [](const std::string& text) { parse_completion(text, kLimits); });
  }
  const Refusal bodies[] = {
      {R"({})", "prompt"},
      {R"({"prompt": null})", "prompt"},
      {R"({"prompt": 3})", "prompt"},
      {R"({"prompt": {}})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": [true]})", "prompt"},
      {R"({"prompt": [1, "a"]})", "prompt[1]"},
      {R"({"prompt": ["a", 1]})", "prompt"},
      {R"({"prompt": [[1], "a"]})", "prompt"},
      {R"({"prompt": [1, 2048]})", "prompt[1]"},
      {R"({"prompt": [-1]})", "prompt[0]"},
      {R"({"prompt": [1.5]})", "prompt[0]"},
      {R"({"prompt": [[1], [2, 9999]]})", "prompt[1][1]"},
      {R"({"prompt": ["a", "b"], "n": 65})", "n: "},
  };
  for (const Refusal& refusal : bodies) {
    expect_refused(refusal, [](const std::string& text) { parse_completion(text, kLimits); });
  }
}

TEST(Requests, RefusesMoreAnswersThanTheEngineHolds) {
  const RequestLimits few{2048, {}, 3};
  const Refusal refusals[] = {{R"({"prompt": "a", "n": 4})", "n: must be an integer from 1 to 3, not 4"},
                              {R"({"prompt": ["a", "b"], "n": 2})", "n: 2 prompts times n = 2"},
                              {R"({"prompt": ["a", "b", "c", "d"]})", "prompt: has 4 prompts"}};
  for (const Refusal& refusal : refusals) {
    expect_refused(refusal, [&](const std::string& text) { parse_completion(text, few); });
  }
  EXPECT_EQ(parse_completion(R"({"prompt": "a", "n": 3})", few).n, 3);
}

TEST(Requests, TokenCountsAreNamedAsTheyWereSent) {
  const auto parse = [](const std::string& text) { parse_chat_completion(text, kLimits); };
  const std::string newer = chat_with(R"("max_completion_tokens": 5, "min_tokens": 6)");
  expect_refused({newer.c_str(), "min_tokens: 6 is more than max_completion_tokens, which is 5"}, parse);
  const std::string older = chat_with(R"("max_tokens": 5, "min_tokens": 6)");
  expect_refused({older.c_str(), "min_tokens: 6 is more than max_tokens, which is 5"}, parse);
}

TEST(Requests, RefusesTokenizeAndDetokenize) {
  for (const Refusal& refusal :
       {Refusal{R"({})", "prompt"}, Refusal{R"({"prompt": 3})", "prompt"},
        Refusal{R"({"prompt": "a", "messages": []})", "prompt"}, Refusal{R"({"messages": []})", "messages"},
        Refusal{R"({"prompt": "a", "return_token_strs": 1})", "return_token_strs"}}) {
    expect_refused(refusal, [](const std::string& text) { parse_tokenize(text); });
  }
  for (const Refusal& refusal :
       {Refusal{R"({})", "tokens"}, Refusal{R"({"tokens": "a"})", "tokens"},
        Refusal{R"({"tokens": [2048]})", "tokens[0]"}, Refusal{R"({"tokens": [1, null]})", "tokens[1]"}}) {
    expect_refused(refusal, [](const std::string& text) { parse_detokenize(text, kLimits); });
  }
}

TEST(Requests, ReadsChat) {
  const auto request =
      parse_chat_completion(chat_with(R"("model": "m", "n": 2, "temperature": 0.5, "top_k": -1, "seed": -1, "stop": "x",
      "stop_token_ids": [7], "max_tokens": 9, "max_completion_tokens": 5, "min_tokens": 2, "logprobs": true, "top_logprobs": 3,
      "logit_bias": {"11": -2.5}, "stream": true, "stream_options": {"include_usage": true}, "priority": -4, "unknown": {"a": [1]},
      "response_format": {"type": "json_object"}, "top_p": null)"),
                            kLimits);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.95F);  // the model's own
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.sampling.stop_ids, std::vector<int32_t>{7});
  EXPECT_EQ(request.max_tokens, 5);  // the newer name wins
  EXPECT_EQ(request.sampling.min_tokens, 2);
  EXPECT_EQ(request.sampling.top_logprobs, 3);
  ASSERT_EQ(request.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(request.sampling.logit_bias[0], (std::pair<int32_t, float>{11, -2.5F}));
  EXPECT_TRUE(request.stream && request.include_usage && !request.continuous_usage);
  EXPECT_EQ(request.priority, -4);
  EXPECT_TRUE(request.chat.thinking);
  EXPECT_EQ(request.chat.thinking_effort, "max");
  EXPECT_TRUE(request.chat.response_format.has_value());
}

TEST(Requests, ThinkingIsReadInOrderOfRank) {
  const auto chat = [](const std::string& member) { return parse_chat_completion(chat_with(member), kLimits).chat; };
  EXPECT_FALSE(chat(R"("thinking": {"type": "disabled"})").thinking);
  EXPECT_FALSE(chat(R"("chat_template_kwargs": {"thinking": false})").thinking);
  EXPECT_TRUE(chat(R"("chat_template_kwargs": {"thinking": false}, "thinking": {"type": "enabled"})").thinking);
  EXPECT_FALSE(chat(R"("reasoning_effort": "none")").thinking);
  EXPECT_EQ(chat(R"("thinking": {"type": "enabled", "effort": "low"})").thinking_effort, "low");
  EXPECT_EQ(chat(R"("thinking": {"effort": "low"}, "reasoning_effort": "high")").thinking_effort, "high");
  EXPECT_EQ(chat(R"("chat_template_kwargs": {"thinking_effort": "medium"})").thinking_effort, "medium");
}

TEST(Requests, StopIdsAreTheConfigsAndTheEndOfAMessage) {
  const auto tokenizer = text::Tokenizer::load(TRIREME_SOURCE_DIR "/models/k3-nano");
  const int32_t end = tokenizer.special().end_of_msg;
  checkpoint::ModelConfig config;
  config.eos_tokens = {7, 5};
  EXPECT_EQ(stop_ids(config, tokenizer), (std::vector<int32_t>{7, 5, end}));
  config.eos_tokens = {end, 5};
  EXPECT_EQ(stop_ids(config, tokenizer), (std::vector<int32_t>{end, 5}));
}

TEST(Requests, ReadsPrompts) {
  const auto prompts = [](const std::string& prompt) {
    return parse_completion("{\"prompt\":" + prompt + "}", kLimits).prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(prompts("\"a\""), (std::vector<Prompt>{"a"}));
  EXPECT_EQ(prompts("[\"a\", \"b\"]"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1, 2]"), (std::vector<Prompt>{Ids{1, 2}}));
  EXPECT_EQ(prompts("[[1], [2, 3]]"), (std::vector<Prompt>{Ids{1}, Ids{2, 3}}));
  EXPECT_FALSE(parse_completion(R"({"prompt": "a"})", kLimits).max_tokens);  // what fits is known later
  EXPECT_EQ(parse_completion(R"({"prompt": "a", "logprobs": 0})", kLimits).sampling.top_logprobs, 0);
}

TEST(Requests, ReadsTokenize) {
  EXPECT_EQ(std::get<std::string>(parse_tokenize(R"({"prompt": "a\u0000b"})").input), std::string("a\0b", 3));
  EXPECT_EQ(std::get<text::ChatRequest>(parse_tokenize(R"({"messages": [{"role": "user", "content": "x"}]})").input)
                .messages.size(),
            1U);
  EXPECT_EQ(parse_detokenize(R"({"tokens": [1, 2]})", kLimits).tokens, (std::vector<int32_t>{1, 2}));
}

}  // namespace
}  // namespace trireme::serve
