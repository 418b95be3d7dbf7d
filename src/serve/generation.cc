#include "serve/generation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trireme::serve {
namespace {

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void append(text::ParsedDelta& all, const text::ParsedDelta& more) {
  all.reasoning += more.reasoning;
  all.content += more.content;
  all.tool_calls.insert(all.tool_calls.end(), more.tool_calls.begin(), more.tool_calls.end());
}

}  // namespace

void LiveGenerations::add(const std::shared_ptr<Generation>& generation) {
  const std::lock_guard lock(mutex_);
  live_.emplace(generation.get(), generation);
}

void LiveGenerations::remove(Generation* generation) {
  const std::lock_guard lock(mutex_);
  live_.erase(generation);
}

std::vector<std::shared_ptr<Generation>> LiveGenerations::all() const {
  std::vector<std::shared_ptr<Generation>> generations;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, weak] : live_) {
    if (auto generation = weak.lock()) generations.push_back(std::move(generation));
  }
  return generations;
}

Generation::Generation(const GenerationContext& context, GenerationPlan plan, std::shared_ptr<Exchange> exchange)
    : context_(context),
      plan_(std::move(plan)),
      exchange_(std::move(exchange)),
      seed_(plan_.common.seed.value_or(random_seed())) {
  for (const auto& prompt : plan_.prompts) {
    for (int64_t i = 0; i < plan_.common.n; ++i) {
      choices_.emplace_back(Decoder(context_.tokenizer, plan_.decoder));
      choices_.back().prompt_tokens = static_cast<int64_t>(prompt.size());
      choices_.back().last_token = arrival_;
    }
  }
  open_choices_ = choices_.size();
}

Generation::~Generation() {
  context_.live.remove(this);
  // Only when the engine or the workers ended without the last event.
  // This may be the engine's thread, so nothing is cancelled here.
  if (!std::exchange(answered_, true)) answer_error(ApiError(503, "the server is stopping"));
}

engine::Request Generation::engine_request(size_t index) {
  const auto n = static_cast<size_t>(plan_.common.n);
  engine::Request request;
  request.prompt = plan_.prompts[index / n];
  request.sampling = plan_.common.sampling;
  request.sampling.seed = seed_ + index % n;  // choices of one prompt differ, and the first is what n = 1 gives
  request.priority = plan_.common.priority;
  request.on_output = [self = shared_from_this(), index](const engine::Output& output) {
    self->receive(index, output);
  };
  return request;
}

void Generation::start() {
  context_.live.add(shared_from_this());
  exchange_->on_abandoned([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->cancel();
  });
  try {
    submit_all();
    if (plan_.common.stream) begin_stream();
  } catch (const BadInput& error) {
    fail(ApiError(400, error.what()));
  } catch (const engine::QueueFull& error) {
    fail(ApiError(429, error.what(), "", "queue_full"));
  } catch (const Failure& error) {
    fail(ApiError(503, error.what(), "", "engine_down"));
  } catch (const std::exception& error) {
    fail(ApiError(500, error.what()));
  }
  drain();
}

void Generation::submit_all() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_) return;
    }
    const engine::RequestId id = context_.engine.submit(engine_request(i));
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
      cancelled = cancelled_;
    }
    if (cancelled) context_.engine.cancel(id);
  }
}

void Generation::cancel() {
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const engine::RequestId id : ids) context_.engine.cancel(id);
}

void Generation::receive(size_t index, const engine::Output& output) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.emplace_back(index, output);
    if (std::exchange(draining_, true)) return;
  }
  context_.workers.post([self = shared_from_this()] { self->drain(); });
}

void Generation::drain() {
  for (;;) {
    std::vector<std::pair<size_t, engine::Output>> batch;
    {
      const std::lock_guard lock(mutex_);
      if (inbox_.empty()) {
        draining_ = false;
        return;
      }
      batch.swap(inbox_);
    }
    try {
      for (const auto& [index, output] : batch) apply(index, output);
    } catch (const std::exception& error) {
      spdlog::error("{}: {}", plan_.head.id, error.what());
      fail(ApiError(500, error.what()));
    }
  }
}

void Generation::apply(size_t index, const engine::Output& output) {
  Choice& choice = choices_[index];
  if (choice.end) return;  // a stop string ended it; what the engine made since is not wanted
  if (answered_ || exchange_->abandoned()) {
    answered_ = true;
    if (output.finish) count_end(choice, Ending::abort);
    return;
  }
  if (output.finish == engine::FinishReason::error) {
    count_end(choice, Ending::error);
    fail(ApiError(500, output.error));
    return;
  }
  if (output.finish == engine::FinishReason::cancelled) {
    count_end(choice, Ending::abort);
    fail(ApiError(503, "the server is stopping"));
    return;
  }
  text::ParsedDelta delta = take_tokens(choice, output);
  if (choice.decoder.ended() || output.finish) {
    append(delta, choice.decoder.flush());
    end_choice(choice, output);
    // Ended by its text: the engine does not know yet.
    if (!output.finish) context_.engine.cancel(output.id);
  }
  emit(index, std::move(delta));
  if (choice.end && --open_choices_ == 0) finish_answer();
}

text::ParsedDelta Generation::take_tokens(Choice& choice, const engine::Output& output) {
  text::ParsedDelta delta;
  int64_t count = 0;
  for (const engine::OutputToken& token : output.tokens) {
    if (choice.decoder.ended()) break;
    ++count;
    if (logs_probabilities()) choice.unlogged.push_back(token);
    const bool last = &token == &output.tokens.back() && output.finish == engine::FinishReason::stop;
    if (last && contains(plan_.own_stop_ids, token.token)) {
      choice.stop_id = token.token;
    } else {
      append(delta, choice.decoder.push(token.token));
    }
  }
  time_tokens(choice, count);
  return delta;
}

void Generation::time_tokens(Choice& choice, int64_t count) {
  if (count == 0) return;
  const Clock::time_point now = Clock::now();
  if (choice.generated == 0) {
    context_.metrics.first_token(seconds(now - arrival_));
  } else {
    context_.metrics.more_tokens(seconds(now - choice.last_token), count);
  }
  choice.last_token = now;
  choice.generated += count;
}

void Generation::end_choice(Choice& choice, const engine::Output& output) {
  ChoiceEnd end;
  if (choice.decoder.ended() || output.finish == engine::FinishReason::stop) {
    end.finish_reason =
        choice.decoder.tool_calls() > 0 && choice.decoder.matched_stop().empty() ? "tool_calls" : "stop";
    if (!choice.decoder.matched_stop().empty()) {
      end.matched_stop = choice.decoder.matched_stop();
    } else if (choice.stop_id) {
      end.matched_stop = *choice.stop_id;
    }
  } else {
    end.finish_reason = "length";
  }
  count_end(choice, end.finish_reason == "length" ? Ending::length : Ending::stop);
  choice.end = std::move(end);
}

void Generation::count_end(Choice& choice, Ending ending) {
  if (std::exchange(choice.counted, true)) return;
  context_.metrics.ended(ending, seconds(Clock::now() - arrival_), choice.prompt_tokens, choice.generated);
}

void Generation::emit(size_t index, text::ParsedDelta delta) {
  Choice& choice = choices_[index];
  for (text::ToolCall& call : delta.tool_calls) {
    call.index = static_cast<int>(choice.call_count++);
    choice.call_ids.push_back(random_id("call_"));
  }
  if (!streaming_) {
    append(choice.text, delta);
    return;
  }
  if (delta.empty() && !choice.end) return;
  Json logprobs;
  if (logs_probabilities()) {
    logprobs =
        logprobs_json(plan_.head.form, context_.tokenizer, std::exchange(choice.unlogged, {}), choice.text_offset);
  }
  const std::vector<std::string> ids(choice.call_ids.end() - static_cast<std::ptrdiff_t>(delta.tool_calls.size()),
                                     choice.call_ids.end());
  const auto number = static_cast<int64_t>(index);
  if (choice.end && plan_.head.form == AnswerForm::chat && !delta.empty()) {
    // The end comes in a chunk of its own.
    write_chunk(delta_choice(plan_.head.form, number, delta, ids, std::move(logprobs), std::nullopt));
    write_chunk(delta_choice(plan_.head.form, number, {}, {}, nullptr, choice.end));
    return;
  }
  write_chunk(delta_choice(plan_.head.form, number, delta, ids, std::move(logprobs), choice.end));
}

void Generation::write_chunk(Json choice) {
  Json chunk = answer_json(plan_.head, true, Json::array({std::move(choice)}));
  if (plan_.common.continuous_usage) {
    chunk["usage"] = usage_json(usage());
  } else if (plan_.common.include_usage) {
    chunk["usage"] = nullptr;
  }
  exchange_->write(sse(chunk));
}

void Generation::begin_stream() {
  streaming_ = true;
  exchange_->begin_stream();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    if (plan_.head.form == AnswerForm::chat) {
      write_chunk(role_choice(number));
    } else if (!plan_.echoes.empty()) {
      text::ParsedDelta echo;
      echo.content = plan_.echoes[i / static_cast<size_t>(plan_.common.n)];
      write_chunk(delta_choice(AnswerForm::completion, number, echo, {}, nullptr, std::nullopt));
    }
  }
}

void Generation::finish_answer() {
  answered_ = true;
  if (streaming_) {
    if (plan_.common.include_usage) {
      Json last = answer_json(plan_.head, true, Json::array());
      last["usage"] = usage_json(usage());
      exchange_->write(sse(last));
    }
    exchange_->write(kSseDone);
    exchange_->finish();
    return;
  }
  Json list = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json logprobs;
    if (logs_probabilities())
      logprobs = logprobs_json(plan_.head.form, context_.tokenizer, choice.unlogged, choice.text_offset);
    if (!plan_.echoes.empty())
      choice.text.content = plan_.echoes[i / static_cast<size_t>(plan_.common.n)] + choice.text.content;
    list.push_back(whole_choice(plan_.head.form, static_cast<int64_t>(i), choice.text, choice.call_ids,
                                std::move(logprobs), *choice.end));
  }
  Json answer = answer_json(plan_.head, false, std::move(list));
  answer["usage"] = usage_json(usage());
  exchange_->send({.status = 200, .body = dump(answer), .headers = {}});
}

void Generation::fail(const ApiError& error) {
  if (std::exchange(answered_, true)) return;
  cancel();
  answer_error(error);
}

void Generation::answer_error(const ApiError& error) {
  if (streaming_) {
    exchange_->write(sse(error_json(error)));
    exchange_->write(kSseDone);
    exchange_->finish();
    return;
  }
  HttpResponse response{.status = error.status, .body = dump(error_json(error)), .headers = {}};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  exchange_->send(std::move(response));
}

Usage Generation::usage() const {
  Usage usage;
  for (const auto& prompt : plan_.prompts) usage.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.generated;
    usage.reasoning_tokens += choice.decoder.reasoning_tokens();
  }
  return usage;
}

}  // namespace trireme::serve
