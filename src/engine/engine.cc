#include "engine/engine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "engine/executor.h"
#include "engine/pools.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/draft.h"
#include "model/model.h"
#include "ops/select.h"

namespace trireme::engine {
namespace {

using Clock = std::chrono::steady_clock;
using Listener = std::function<void(const Output&)>;

constexpr int64_t kMostTokens = int64_t{1} << 40;  // their bytes still fit into an int64_t

void check_options(const EngineOptions& o) {
  if (o.threads < 0)
    throw BadInput(fmt::format("threads is {}; it must be at least 1, or 0 for one a core", o.threads));
  if (o.max_running < 1) throw BadInput(fmt::format("max_running is {}; it must be at least 1", o.max_running));
  if (o.max_tokens < 0 || o.max_tokens > kMostTokens) {
    throw BadInput(
        fmt::format("max_tokens is {}; it must be from 1 to {}, or 0 to derive it", o.max_tokens, kMostTokens));
  }
  if (o.gamma < 1) throw BadInput(fmt::format("gamma is {}; it must be at least 1", o.gamma));
}

int thread_count(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ledger::PoolSizes pool_sizes(const EngineOptions& o, const checkpoint::ModelConfig& config) {
  int64_t tokens = o.max_tokens;
  if (tokens == 0) {
    tokens = std::max(o.max_running * std::min<int64_t>(config.max_positions, 4096), config.max_positions);
  }
  return {cache::pages_for(tokens), o.max_running};
}

ledger::Plan make_plan(const EngineOptions& o, const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops) {
  ledger::Plan plan = ledger::plan_memory(checkpoint, ops, pool_sizes(o, checkpoint.config()));
  if (o.draft) {
    for (ledger::Line& line : model::Draft::plan(*o.draft, ops, o.max_running)) plan.lines.push_back(std::move(line));
  }
  return plan;
}

// Everything that is loaded once and then only used by the engine's thread.
struct Machine {
  ThreadPool threads;
  std::unique_ptr<ops::Ops> ops;
  ledger::PoolSizes sizes;
  ledger::Account account;
  model::Model model;
  std::unique_ptr<model::Draft> draft;
  Pools pools;

  Machine(const EngineOptions& o, const checkpoint::Checkpoint& checkpoint)
      : threads(thread_count(o.threads)),
        ops(ops::make_ops(o.isa, o.precision, threads)),
        sizes(pool_sizes(o, checkpoint.config())),
        account(make_plan(o, checkpoint, *ops)),
        model(checkpoint, *ops, account),
        pools(model.config(), o.precision, sizes, account) {
    if (!o.draft) return;
    draft = std::make_unique<model::Draft>(*o.draft, model, account);
    if (o.gamma > draft->config().max_gamma()) {
      throw BadInput(fmt::format("gamma is {}; the draft {} proposes at most {}", o.gamma, o.draft->string(),
                                 draft->config().max_gamma()));
    }
    pools.add_draft_windows(draft->config(), account);
  }
};

}  // namespace

struct Engine::State {
  EngineOptions options;
  Machine machine;
  Executor executor;

  mutable std::mutex mutex;  // guards all below; not held while a step runs or a listener is called
  std::condition_variable work;
  std::condition_variable quiet;
  Scheduler scheduler;
  std::map<RequestId, std::shared_ptr<Listener>> listeners;  // of requests whose last event was not delivered yet
  RequestId next_id = 1;
  std::vector<SchedulerEvent> events;  // counted, not delivered yet
  bool stopping = false;
  bool news = false;
  std::string dead;  // why the loop ended for good; empty while it runs
  EngineStats counters;
  Clock::time_point last_round = Clock::now();
  std::thread thread;

  State(const EngineOptions& o, const checkpoint::Checkpoint& checkpoint)
      : options(o),
        machine(o, checkpoint),
        executor(machine.model, machine.draft.get(), machine.pools),
        scheduler({o.chunk_tokens, o.max_queue, o.draft ? o.gamma : 0}, machine.pools.latents().pages(),
                  machine.pools.states().slots()) {}

  void check(const Request& request) const;
  void loop();
  void round(std::unique_lock<std::mutex>& lock);
  StepOutput run_step(const StepPlan& plan, std::span<const Sequence* const> sequences);
  void deliver(std::unique_lock<std::mutex>& lock, const StepPlan& plan, StepOutput& step);
  void deliver(std::unique_lock<std::mutex>& lock) {
    StepOutput none;
    deliver(lock, {}, none);
  }
  void collect();
  void count(const SchedulerEvent& event);
  void check_idle_pools() const;
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& reason);
};

void Engine::State::check(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const checkpoint::ModelConfig& config = machine.model.config();
  if (prompt == 0) throw BadInput("prompt is empty; it must have at least one token");
  if (prompt >= config.max_positions) {
    throw BadInput(fmt::format("prompt has {} tokens; the model's context of {} takes at most {}", prompt,
                               config.max_positions, config.max_positions - 1));
  }
  const int64_t room = machine.pools.pages().total() * ops::kPageTokens;
  if (prompt > room) {
    throw BadInput(
        fmt::format("prompt has {} tokens, but the MLA pages hold {}; raise max_tokens of the engine", prompt, room));
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= config.vocab) {
      throw BadInput(fmt::format("prompt token {} at index {} is outside the vocabulary of {}", request.prompt[i], i,
                                 config.vocab));
    }
  }
  if (!request.on_output) throw BadInput("on_output is empty; somebody must hear the answer");
  check_sampling(request.sampling, config.vocab);
}

// The engine's thread. Whatever a step throws ends the requests of that step; whatever else is thrown ends all
// requests. Only if even that fails does the loop end, and then submit() says why.
void Engine::State::loop() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    try {
      round(lock);
    } catch (const std::exception& e) {
      if (!lock.owns_lock()) lock.lock();
      spdlog::critical("engine: {}; every request is ended", e.what());
      try {
        scheduler.fail_all(fmt::format("the engine failed: {}", e.what()));
        deliver(lock);
      } catch (const std::exception& second) {
        if (!lock.owns_lock()) lock.lock();
        give_up(lock, second.what());
        return;
      }
    }
  }
  std::vector<RequestId> alive;
  for (const auto& [id, listener] : listeners) alive.push_back(id);
  for (const RequestId id : alive) scheduler.cancel(id);
  deliver(lock);
}

void Engine::State::round(std::unique_lock<std::mutex>& lock) {
  last_round = Clock::now();
  news = false;
  const StepPlan plan = scheduler.plan();
  deliver(lock);  // cancellations, and requests that can never run
  if (plan.empty()) {
    if (scheduler.idle()) check_idle_pools();
    work.wait_for(lock, std::chrono::milliseconds(500), [&] { return stopping || news; });
    return;
  }
  std::vector<const Sequence*> sequences;  // their tokens change only in complete()
  for (const PlanEntry& entry : plan.entries) sequences.push_back(&scheduler.sequence(entry.id));
  lock.unlock();
  StepOutput step = run_step(plan, sequences);
  lock.lock();
  scheduler.complete(plan, step.results);
  ++counters.steps;
  counters.draft_rounds += step.draft_rounds;
  counters.draft_emitted += step.draft_emitted;
  deliver(lock, plan, step);
}

StepOutput Engine::State::run_step(const StepPlan& plan, std::span<const Sequence* const> sequences) {
  try {
    return executor.run(plan, sequences);
  } catch (const std::exception& e) {
    spdlog::error("engine: a step of {} requests failed: {}", plan.entries.size(), e.what());
    StepOutput failed;
    failed.tokens.resize(plan.entries.size());
    failed.results.resize(plan.entries.size(), {{}, FinishReason::error, fmt::format("the step failed: {}", e.what())});
    return failed;
  }
}

// Tells the listeners what the scheduler reports; `step` has the tokens of this round.
void Engine::State::deliver(std::unique_lock<std::mutex>& lock, const StepPlan& plan, StepOutput& step) {
  collect();
  if (events.empty()) return;
  std::map<RequestId, size_t> entry_of;
  for (size_t i = 0; i < plan.entries.size(); ++i) entry_of[plan.entries[i].id] = i;
  std::vector<std::pair<std::shared_ptr<Listener>, Output>> outputs;
  for (SchedulerEvent& event : std::exchange(events, {})) {
    Output output{event.id, {}, event.finish, std::move(event.error)};
    if (event.tokens > 0) output.tokens = std::move(step.tokens[entry_of.at(event.id)]);
    outputs.emplace_back(listeners.at(event.id), std::move(output));
  }
  lock.unlock();
  for (const auto& [listener, output] : outputs) {
    try {
      (*listener)(output);
    } catch (const std::exception& e) {
      spdlog::error("engine: the listener of request {} threw: {}", output.id, e.what());
    }
  }
  lock.lock();
  for (const auto& [listener, output] : outputs) {
    if (output.finish) listeners.erase(output.id);
  }
  lock.unlock();
  outputs.clear();  // what a listener holds is destroyed without the lock
  lock.lock();
  if (listeners.empty()) quiet.notify_all();
}

// Takes over what the scheduler reports. Called under the lock that the change was made under, so that whoever sees
// pages and slots back sees the request counted.
void Engine::State::collect() {
  for (SchedulerEvent& event : scheduler.take_events()) {
    count(event);
    events.push_back(std::move(event));
  }
}

void Engine::State::count(const SchedulerEvent& event) {
  counters.generated_tokens += event.tokens;
  if (!event.finish) return;
  switch (*event.finish) {
    case FinishReason::stop:
    case FinishReason::length:
      ++counters.finished;
      break;
    case FinishReason::cancelled:
      ++counters.cancelled;
      break;
    case FinishReason::error:
      ++counters.failed;
      break;
  }
}

void Engine::State::check_idle_pools() const {
  const cache::IdPool& pages = machine.pools.pages();
  const cache::IdPool& slots = machine.pools.slots();
  if (pages.full() && slots.full()) return;
  spdlog::error("engine: idle, but {} of {} pages and {} of {} slots are still taken", pages.total() - pages.free(),
                pages.total(), slots.total() - slots.free(), slots.total());
}

void Engine::State::give_up(std::unique_lock<std::mutex>& lock, const std::string& reason) {
  spdlog::critical("engine: it cannot go on: {}", reason);
  dead = reason;
  const auto all = std::exchange(listeners, {});
  lock.unlock();
  for (const auto& [id, listener] : all) {
    try {
      (*listener)({id, {}, FinishReason::error, fmt::format("the engine cannot go on: {}", reason)});
    } catch (const std::exception& e) {
      spdlog::error("engine: the listener of request {} threw: {}", id, e.what());
    }
  }
  lock.lock();
  quiet.notify_all();
}

Engine::Engine(const EngineOptions& options) {
  check_options(options);
  state_ = std::make_unique<State>(options, checkpoint::Checkpoint::open(options.model));
  spdlog::info("engine: {} on {} with {} threads, {} pages of {} tokens, {} slots", options.model.string(), isa(),
               threads(), state_->machine.sizes.pages, ops::kPageTokens, state_->machine.sizes.kda_slots);
  state_->thread = std::thread([s = state_.get()] { s->loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work.notify_all();
  state_->thread.join();
}

const checkpoint::ModelConfig& Engine::config() const { return state_->machine.model.config(); }
const ledger::Account& Engine::account() const { return state_->machine.account; }
std::string_view Engine::isa() const { return state_->machine.ops->name(); }
int Engine::threads() const { return state_->machine.threads.threads(); }

RequestId Engine::submit(Request request) {
  State& s = *state_;
  s.check(request);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, config().max_positions - prompt);
  RequestId id = 0;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.dead.empty()) throw Failure("the engine cannot go on: " + s.dead);
    id = s.next_id;
    if (!s.scheduler.submit(id, std::move(request.prompt), std::move(request.sampling), request.priority)) {
      throw Failure(fmt::format("the queue is full: {} requests wait and max_queue is {}; try again later",
                                s.scheduler.waiting(), s.options.max_queue));
    }
    ++s.next_id;
    s.listeners.emplace(id, std::make_shared<Listener>(std::move(request.on_output)));
    ++s.counters.requests;
    s.counters.prompt_tokens += prompt;
    s.news = true;
  }
  s.work.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->scheduler.cancel(id);
    state_->collect();
    state_->news = true;
  }
  state_->work.notify_one();
}

EngineStats Engine::stats() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  EngineStats stats = s.counters;
  stats.running = s.scheduler.running();
  stats.waiting = s.scheduler.waiting();
  stats.retractions = s.scheduler.retractions();
  stats.pages_total = s.machine.pools.pages().total();
  stats.pages_free = s.machine.pools.pages().free();
  stats.slots_total = s.machine.pools.slots().total();
  stats.slots_free = s.machine.pools.slots().free();
  stats.last_step_age_s = std::chrono::duration<double>(Clock::now() - s.last_round).count();
  return stats;
}

void Engine::wait_idle() {
  std::unique_lock lock(state_->mutex);
  state_->quiet.wait(lock, [&] { return state_->listeners.empty(); });
}

}  // namespace trireme::engine
