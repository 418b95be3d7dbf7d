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
#include "base/memory.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "engine/executor.h"
#include "engine/machine.h"
#include "engine/pools.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "ledger/forms.h"
#include "model/draft.h"
#include "model/model.h"
#include "ops/select.h"

namespace trireme::engine {
namespace {

using Clock = std::chrono::steady_clock;
using Listener = std::function<void(const Output&)>;
using Message = std::pair<std::shared_ptr<Listener>, Output>;

constexpr int64_t kMostTokens = cache::kMostIds * ops::kPageTokens;

void check_options(const EngineOptions& o) {
  if (o.threads < 0)
    throw BadInput(fmt::format("threads is {}; it must be at least 1, or 0 for one a core", o.threads));
  if (o.max_running < 1 || o.max_running > cache::kMostIds)
    throw BadInput(fmt::format("max_running is {}; it must be from 1 to {}", o.max_running, cache::kMostIds));
  if (o.max_tokens < 0 || o.max_tokens > kMostTokens) {
    throw BadInput(
        fmt::format("max_tokens is {}; it must be from 1 to {}, or 0 to derive it", o.max_tokens, kMostTokens));
  }
  if (o.gamma < 1) throw BadInput(fmt::format("gamma is {}; it must be at least 1", o.gamma));
  if (!o.draft) return;
  if (const int64_t most = checkpoint::read_draft_config(*o.draft).max_gamma(); o.gamma > most) {
    throw BadInput(fmt::format("gamma is {}; the draft {} proposes at most {}", o.gamma, o.draft->string(), most));
  }
}

ledger::PoolSizes pool_sizes(const EngineOptions& o, const checkpoint::ModelConfig& config) {
  int64_t tokens = o.max_tokens;
  if (tokens == 0) {
    tokens = std::max(o.max_running * std::min<int64_t>(config.max_positions, 4096), config.max_positions);
    if (tokens > kMostTokens) {
      throw BadInput(fmt::format("max_running is {}: the MLA pages would hold {} tokens, more than {}; set max_tokens",
                                 o.max_running, tokens, kMostTokens));
    }
  }
  return {cache::pages_for(tokens), o.max_running};
}

std::string gib(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
}

// Refuses what this machine cannot hold before hours are spent on reading it.
void check_memory(const ledger::Plan& plan, const EngineOptions& o) {
  const std::optional<int64_t> available = available_memory();
  if (!available || plan.total() <= *available) return;
  int64_t pages = 0;
  int64_t slots = 0;
  for (const ledger::Line& line : plan.lines) {
    if (line.name == ledger::kPageLine) pages += line.bytes;
    if (line.name == ledger::kStateLine || line.name == ledger::kDraftWindowLine) slots += line.bytes;
  }
  const int64_t weights = plan.total() - pages - slots;
  std::string advice;
  if (weights > *available) {
    advice = fmt::format("the weights alone take {}; a machine with more memory is needed", gib(weights));
  } else if (slots > pages && o.max_running > 1) {
    advice = fmt::format(
        "KDA slots and draft windows take {}; lower max_running (--max-running; of eval --concurrency)", gib(slots));
  } else {
    advice = fmt::format("MLA pages take {}; lower max_tokens (--max-tokens; of eval --concurrency)", gib(pages));
  }
  throw Failure(
      fmt::format("the memory plan needs {} and {} are available: {}", gib(plan.total()), gib(*available), advice));
}

ledger::Plan make_plan(const EngineOptions& o, const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops) {
  ledger::Plan plan = ledger::plan_memory(checkpoint, ops, pool_sizes(o, checkpoint.config()));
  if (o.draft) {
    for (ledger::Line& line : model::Draft::plan(*o.draft, ops, o.max_running)) plan.lines.push_back(std::move(line));
  }
  check_memory(plan, o);
  return plan;
}

// One rank with everything: it is loaded once and then only used by the engine's thread.
class SoloMachine : public Machine {
 public:
  SoloMachine(const EngineOptions& o, const checkpoint::Checkpoint& checkpoint)
      : threads_(thread_count(o.threads)),
        ops_(ops::make_ops(o.isa, o.precision, threads_)),
        sizes_(pool_sizes(o, checkpoint.config())),
        account_(make_plan(o, checkpoint, *ops_)),
        model_(checkpoint, *ops_, account_),
        pools_(model_.config(), o.precision, sizes_, account_) {
    if (o.draft) {
      draft_ = std::make_unique<model::Draft>(*o.draft, model_, account_);
      pools_.add_draft_windows(draft_->config(), account_);
    }
    executor_.emplace(model_, draft_.get(), pools_);
  }

  const checkpoint::ModelConfig& config() const override { return model_.config(); }
  const ledger::Account& account() const override { return account_; }
  std::string_view isa() const override { return ops_->name(); }
  int threads() const override { return threads_.threads(); }
  int64_t groups() const override { return 1; }
  cache::IdPool& pages(int64_t) override { return pools_.latents().pages(); }
  cache::IdPool& slots(int64_t) override { return pools_.states().slots(); }
  int64_t page_tokens() const override { return ops::kPageTokens; }
  std::vector<StepOutput> run(std::span<const GroupStep> steps) override {
    std::vector<StepOutput> outputs;
    outputs.push_back(executor_->run(steps.front().plan, steps.front().sequences));
    return outputs;
  }

 private:
  ThreadPool threads_;
  std::unique_ptr<ops::Ops> ops_;
  ledger::PoolSizes sizes_;
  ledger::Account account_;
  model::Model model_;
  std::unique_ptr<model::Draft> draft_;
  Pools pools_;
  std::optional<Executor> executor_;
};

// A listener that throws harms nobody but itself.
void call(const Listener& listener, const Output& output) {
  try {
    listener(output);
  } catch (const std::exception& e) {
    spdlog::error("engine: the listener of request {} threw: {}", output.id, e.what());
  }
}

}  // namespace

struct Engine::State {
  EngineOptions options;
  std::unique_ptr<Machine> machine;
  Probe probe;

  mutable std::mutex mutex;  // guards all below; not held while a step runs or a listener is called
  std::condition_variable work;
  std::condition_variable quiet;
  std::vector<Scheduler> schedulers;                         // one an attention group
  std::map<RequestId, size_t> group_of;                      // of the requests with a listener
  std::map<RequestId, std::shared_ptr<Listener>> listeners;  // of requests whose last event was not delivered yet
  RequestId next_id = 1;
  std::vector<SchedulerEvent> events;  // counted, not delivered yet
  bool stopping = false;
  bool news = false;
  std::string dead;  // why the loop ended for good; empty while it runs
  EngineStats counters;
  Clock::time_point last_round = Clock::now();
  std::thread thread;

  State(const EngineOptions& o, std::unique_ptr<Machine> the_machine, Probe called)
      : options(o), machine(std::move(the_machine)), probe(std::move(called)) {
    const SchedulerLimits limits{o.chunk_tokens, o.max_queue, o.draft ? o.gamma : 0, o.chunks, machine->page_tokens()};
    for (int64_t g = 0; g < machine->groups(); ++g) {
      schedulers.emplace_back(limits, machine->pages(g), machine->slots(g));
    }
  }

  int64_t request_tokens() const {
    return std::min(machine->config().max_positions, machine->pages(0).total() * machine->page_tokens());
  }
  size_t least_busy() const;
  void check(const Request& request) const;
  void loop();
  void round(std::unique_lock<std::mutex>& lock);
  std::vector<StepOutput> run_step(std::span<const GroupStep> steps);
  void deliver(std::unique_lock<std::mutex>& lock, std::span<const GroupStep> steps = {},
               std::span<StepOutput> outputs = {});
  void tell(std::unique_lock<std::mutex>& lock, std::vector<Message> messages);
  void fail_all(std::unique_lock<std::mutex>& lock, const std::string& reason);
  void collect();
  void count(const SchedulerEvent& event);
  void check_idle_pools() const;
  void cancel_all(std::unique_lock<std::mutex>& lock);
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& reason);
};

void Engine::State::check(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const checkpoint::ModelConfig& config = machine->config();
  if (prompt == 0) throw BadInput("prompt is empty; it must have at least one token");
  if (prompt >= config.max_positions) {
    throw BadInput(fmt::format("prompt has {} tokens; the model's context of {} takes at most {}", prompt,
                               config.max_positions, config.max_positions - 1));
  }
  const int64_t room = machine->pages(0).total() * machine->page_tokens();
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
  try {
    while (!stopping) {
      try {
        round(lock);
      } catch (const std::exception& e) {
        if (!lock.owns_lock()) lock.lock();
        spdlog::critical("engine: {}; every request is ended", e.what());
        fail_all(lock, fmt::format("the engine failed: {}", e.what()));
        if (machine->lost()) return give_up(lock, e.what());
      }
    }
    cancel_all(lock);
  } catch (const std::exception& e) {
    if (!lock.owns_lock()) lock.lock();
    give_up(lock, e.what());
  }
}

void Engine::State::round(std::unique_lock<std::mutex>& lock) {
  last_round = Clock::now();
  news = false;
  std::vector<GroupStep> steps(schedulers.size());
  bool idle = true;
  bool empty = true;
  for (size_t g = 0; g < steps.size(); ++g) {
    steps[g].plan = schedulers[g].plan();
    empty = empty && steps[g].plan.empty();
    idle = idle && schedulers[g].idle();
  }
  deliver(lock);  // cancellations, and requests that can never run
  if (empty) {
    if (idle) check_idle_pools();
    work.wait_for(lock, std::chrono::milliseconds(500), [&] { return stopping || news; });
    return;
  }
  for (size_t g = 0; g < steps.size(); ++g) {  // their tokens change only in complete()
    for (const PlanEntry& entry : steps[g].plan.entries) {
      steps[g].sequences.push_back(&schedulers[g].sequence(entry.id));
    }
  }
  lock.unlock();
  std::vector<StepOutput> outputs = run_step(steps);
  lock.lock();
  for (size_t g = 0; g < steps.size(); ++g) {
    if (!steps[g].plan.empty()) schedulers[g].complete(steps[g].plan, outputs[g].results);
    counters.draft_rounds += outputs[g].draft_rounds;
    counters.draft_emitted += outputs[g].draft_emitted;
  }
  ++counters.steps;
  deliver(lock, steps, outputs);
}

std::vector<StepOutput> Engine::State::run_step(std::span<const GroupStep> steps) {
  try {
    if (probe) {
      for (const GroupStep& step : steps) probe(step.sequences);
    }
    return machine->run(steps);
  } catch (const std::exception& e) {
    if (machine->lost()) throw;
    spdlog::error("engine: a step failed: {}", e.what());
    std::vector<StepOutput> failed(steps.size());
    for (size_t g = 0; g < steps.size(); ++g) {
      const size_t count = steps[g].plan.entries.size();
      failed[g].tokens.resize(count);
      failed[g].results.resize(count, {{}, FinishReason::error, fmt::format("the step failed: {}", e.what())});
    }
    return failed;
  }
}

// Tells the listeners what the schedulers report; `outputs` have the tokens of this round.
void Engine::State::deliver(std::unique_lock<std::mutex>& lock, std::span<const GroupStep> steps,
                            std::span<StepOutput> outputs) {
  collect();
  if (events.empty()) return;
  std::map<RequestId, std::vector<OutputToken>*> tokens_of;
  for (size_t g = 0; g < steps.size(); ++g) {
    for (size_t i = 0; i < steps[g].plan.entries.size(); ++i) {
      tokens_of[steps[g].plan.entries[i].id] = &outputs[g].tokens[i];
    }
  }
  std::vector<Message> messages;
  for (SchedulerEvent& event : std::exchange(events, {})) {
    Output output{event.id, {}, event.finish, std::move(event.error)};
    if (event.tokens > 0) output.tokens = std::move(*tokens_of.at(event.id));
    messages.emplace_back(listeners.at(event.id), std::move(output));
  }
  tell(lock, std::move(messages));
}

// Calls the listeners without the lock and forgets those that heard their last event.
void Engine::State::tell(std::unique_lock<std::mutex>& lock, std::vector<Message> messages) {
  lock.unlock();
  for (const auto& [listener, output] : messages) call(*listener, output);
  lock.lock();
  for (const auto& [listener, output] : messages) {
    if (output.finish) {
      listeners.erase(output.id);
      group_of.erase(output.id);
    }
  }
  lock.unlock();
  messages.clear();  // what a listener holds is destroyed without the lock
  lock.lock();
  if (listeners.empty()) quiet.notify_all();
}

// Ends every request whose listener has not heard its last event with an error: those that the scheduler still has and
// those whose events were taken from it and lost when something threw.
void Engine::State::fail_all(std::unique_lock<std::mutex>& lock, const std::string& reason) {
  for (Scheduler& scheduler : schedulers) scheduler.fail_all(reason);
  collect();
  events.clear();
  std::vector<Message> messages;
  for (const auto& [id, listener] : listeners) messages.push_back({listener, {id, {}, FinishReason::error, reason}});
  tell(lock, std::move(messages));
}

void Engine::State::cancel_all(std::unique_lock<std::mutex>& lock) {
  std::vector<RequestId> alive;
  for (const auto& [id, listener] : listeners) alive.push_back(id);
  for (const RequestId id : alive) schedulers[group_of.at(id)].cancel(id);
  deliver(lock);
}

// Takes over what the scheduler reports. Called under the lock that the change was made under, so that whoever sees
// pages and slots back sees the request counted.
void Engine::State::collect() {
  for (Scheduler& scheduler : schedulers) {
    for (SchedulerEvent& event : scheduler.take_events()) {
      count(event);
      events.push_back(std::move(event));
    }
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
  for (int64_t g = 0; g < machine->groups(); ++g) {
    const cache::IdPool& pages = machine->pages(g);
    const cache::IdPool& slots = machine->slots(g);
    if (pages.full() && slots.full()) continue;
    spdlog::error("engine: idle, but {} of {} pages and {} of {} slots of attention group {} are still taken",
                  pages.total() - pages.free(), pages.total(), slots.total() - slots.free(), slots.total(), g);
  }
}

// The attention group with the fewest requests.
size_t Engine::State::least_busy() const {
  const auto load = [](const Scheduler& s) { return s.running() + s.waiting(); };
  const auto least = std::min_element(schedulers.begin(), schedulers.end(),
                                      [&](const Scheduler& a, const Scheduler& b) { return load(a) < load(b); });
  return static_cast<size_t>(least - schedulers.begin());
}

// Once it is dead submit() adds no listener, so they can be called from the map itself, without the lock.
void Engine::State::give_up(std::unique_lock<std::mutex>& lock, const std::string& reason) {
  spdlog::critical("engine: it cannot go on: {}", reason);
  dead = fmt::format("the engine cannot go on: {}", reason);
  lock.unlock();
  for (const auto& [id, listener] : listeners) call(*listener, {id, {}, FinishReason::error, dead});
  lock.lock();
  auto told = std::exchange(listeners, {});
  lock.unlock();
  told.clear();  // what a listener holds is destroyed without the lock
  lock.lock();
  quiet.notify_all();
}

Engine::Engine(const EngineOptions& options, Probe probe) {
  check_options(options);
  auto machine = std::make_unique<SoloMachine>(options, checkpoint::Checkpoint::open(options.model));
  start(options, std::move(machine), std::move(probe));
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Machine> machine) {
  start(options, std::move(machine), nullptr);
}

void Engine::start(const EngineOptions& options, std::unique_ptr<Machine> machine, Probe probe) {
  state_ = std::make_unique<State>(options, std::move(machine), std::move(probe));
  Machine& m = *state_->machine;
  spdlog::info("engine: {} on {} with {} threads, {} attention groups with {} pages of {} tokens and {} slots each",
               options.model.string(), m.isa(), m.threads(), m.groups(), m.pages(0).total(), m.page_tokens(),
               m.slots(0).total());
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

const checkpoint::ModelConfig& Engine::config() const { return state_->machine->config(); }
const ledger::Account& Engine::account() const { return state_->machine->account(); }
std::string_view Engine::isa() const { return state_->machine->isa(); }
int Engine::threads() const { return state_->machine->threads(); }

RequestId Engine::submit(Request request) {
  State& s = *state_;
  s.check(request);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, config().max_positions - prompt);
  RequestId id = 0;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.dead.empty()) throw Failure(s.dead);
    id = s.next_id;
    const size_t group = s.least_busy();
    Scheduler& scheduler = s.schedulers[group];
    if (!scheduler.submit(id, std::move(request.prompt), std::move(request.sampling), request.priority)) {
      throw QueueFull(fmt::format("the queue is full: {} requests wait and max_queue is {}; try again later",
                                  scheduler.waiting(), s.options.max_queue));
    }
    s.group_of[id] = group;
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
    if (!state_->dead.empty()) return;  // it has ended, and the scheduler is not to be trusted
    if (const auto found = state_->group_of.find(id); found != state_->group_of.end()) {
      state_->schedulers[found->second].cancel(id);
    }
    state_->collect();
    state_->news = true;
  }
  state_->work.notify_one();
}

EngineStats Engine::stats() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  EngineStats stats = s.counters;
  for (size_t g = 0; g < s.schedulers.size(); ++g) {
    const auto group = static_cast<int64_t>(g);
    stats.running += s.schedulers[g].running();
    stats.waiting += s.schedulers[g].waiting();
    stats.retractions += s.schedulers[g].retractions();
    stats.pages_total += s.machine->pages(group).total();
    stats.pages_free += s.machine->pages(group).free();
    stats.slots_total += s.machine->slots(group).total();
    stats.slots_free += s.machine->slots(group).free();
  }
  stats.page_tokens = s.machine->page_tokens();
  stats.request_tokens = s.request_tokens();
  stats.dead = s.dead;
  stats.last_round_age_s = std::chrono::duration<double>(Clock::now() - s.last_round).count();
  return stats;
}

void Engine::wait_idle() {
  std::unique_lock lock(state_->mutex);
  state_->quiet.wait(lock, [&] { return state_->listeners.empty(); });
}

}  // namespace trireme::engine
