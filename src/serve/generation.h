// One request for generated text: its prompts' choices in the engine, and the answer that grows from what they emit.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "serve/answers.h"
#include "serve/decoder.h"
#include "serve/exchange.h"
#include "serve/metrics.h"
#include "serve/requests.h"
#include "serve/workers.h"

namespace trireme::serve {

class Generation;

// Generations that have not ended, for shutting down. Thread-safe.
class LiveGenerations {
 public:
  void add(const std::shared_ptr<Generation>& generation);
  void remove(Generation* generation);
  std::vector<std::shared_ptr<Generation>> all() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<Generation*, std::weak_ptr<Generation>> live_;
};

// What a generation works with; outlives it.
struct GenerationContext {
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  Metrics& metrics;
  Workers& workers;
  LiveGenerations& live;
};

struct GenerationPlan {
  AnswerHead head;
  CommonRequest common;                       // sampling complete except for the seed
  std::vector<std::vector<int32_t>> prompts;  // each gives common.n choices
  std::vector<std::string> echoes;            // completions: put before the text, one a prompt; empty without echo
  std::vector<int32_t> own_stop_ids;          // the request's stop_token_ids: their text is not shown
  DecoderOptions decoder;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(const GenerationContext& context, GenerationPlan plan, std::shared_ptr<Exchange> exchange);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Submits all choices; answers an error itself. Not on the engine's thread.
  void start();
  // Ends what still runs. Thread-safe; not on the engine's thread.
  void cancel();

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    explicit Choice(Decoder text_decoder) : decoder(std::move(text_decoder)) {}
    Decoder decoder;
    int64_t prompt_tokens = 0;
    int64_t generated = 0;
    Clock::time_point last_token;
    bool counted = false;            // in the metrics
    std::optional<int32_t> stop_id;  // the request's own, if it ended the answer
    std::optional<ChoiceEnd> end;
    std::vector<engine::OutputToken> unlogged;  // tokens whose log probabilities were not sent yet
    int64_t text_offset = 0;
    int64_t call_count = 0;
    // Not streamed: the answer so far.
    text::ParsedDelta text;
    std::vector<std::string> call_ids;
  };

  engine::Request engine_request(size_t index);
  void submit_all();
  void receive(size_t index, const engine::Output& output);  // on the engine's thread
  void drain();                                              // on one worker at a time
  void apply(size_t index, const engine::Output& output);
  // Adds the event's tokens to the choice and says what they add to its text.
  text::ParsedDelta take_tokens(Choice& choice, const engine::Output& output);
  void time_tokens(Choice& choice, int64_t count);
  void end_choice(Choice& choice, const engine::Output& output);
  void count_end(Choice& choice, Ending ending);
  void emit(size_t index, text::ParsedDelta delta);
  void write_chunk(Json choice);
  void begin_stream();
  void finish_answer();
  // Cancels what runs and answers, unless an answer was given.
  void fail(const ApiError& error);
  void answer_error(const ApiError& error);
  Usage usage() const;
  bool logs_probabilities() const { return plan_.common.sampling.top_logprobs >= 0; }

  GenerationContext context_;
  GenerationPlan plan_;
  const std::shared_ptr<Exchange> exchange_;
  const Clock::time_point arrival_ = Clock::now();
  const uint64_t seed_;

  // Only touched by start() and, after it, by drain().
  std::vector<Choice> choices_;
  size_t open_choices_ = 0;
  bool streaming_ = false;
  bool answered_ = false;

  std::mutex mutex_;  // guards what follows
  std::vector<std::pair<size_t, engine::Output>> inbox_;
  bool draining_ = true;  // until start() is through
  bool cancelled_ = false;
  std::vector<engine::RequestId> ids_;  // of the choices submitted so far
};

}  // namespace trireme::serve
