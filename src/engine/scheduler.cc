#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace trireme::engine {

using Phase = Sequence::Phase;

Scheduler::Scheduler(const SchedulerLimits& limits, cache::IdPool& pages, cache::IdPool& slots)
    : limits_(limits), pages_(pages), slots_(slots) {
  if (limits.chunk_tokens < 1)
    throw BadInput(fmt::format("chunk_tokens is {}; it must be at least 1", limits.chunk_tokens));
  if (limits.max_queue < 0) throw BadInput(fmt::format("max_queue is {}; it must be 0 or more", limits.max_queue));
  if (limits.draft_tokens < 0) throw BadInput(fmt::format("gamma is {}; it must be 0 or more", limits.draft_tokens));
}

// ---- events in

bool Scheduler::submit(RequestId id, std::vector<int32_t> prompt, SamplingParams sampling, int32_t priority) {
  if (waiting() >= limits_.max_queue + slots_.free()) return false;
  Sequence s;
  s.id = id;
  s.sampling = std::move(sampling);
  s.priority = priority;
  s.arrival = arrivals_++;
  s.prompt_tokens = static_cast<int64_t>(prompt.size());
  s.tokens = std::move(prompt);
  waiting_.insert(key(s));
  sequences_.emplace(id, std::move(s));
  return true;
}

void Scheduler::cancel(RequestId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  if (it->second.in_flight) {
    it->second.cancelled = true;  // the step still writes to its pages
  } else {
    end(it->second, 0, FinishReason::cancelled);
  }
}

void Scheduler::complete(const StepPlan& plan, std::span<const EntryResult> results) {
  if (results.size() != plan.entries.size()) {
    throw Failure(fmt::format("a step of {} entries came back with {} results", plan.entries.size(), results.size()));
  }
  in_flight_ = false;
  for (size_t i = 0; i < results.size(); ++i) {
    const PlanEntry& entry = plan.entries[i];
    const EntryResult& result = results[i];
    Sequence& s = find(entry.id);
    s.in_flight = false;
    const auto emitted = static_cast<int64_t>(result.tokens.size());
    if (s.cancelled) {
      end(s, 0, FinishReason::cancelled);
      continue;
    }
    if (result.finish != FinishReason::error &&
        (entry.samples ? emitted < 1 || emitted > 1 + entry.drafts : emitted != 0)) {
      end(s, 0, FinishReason::error,
          fmt::format("a step gave {} tokens for a row that has room for {}", emitted,
                      entry.samples ? 1 + entry.drafts : 0));
      continue;
    }
    s.computed += static_cast<int64_t>(entry.tokens.size()) + std::max<int64_t>(emitted - 1, 0);
    s.tokens.insert(s.tokens.end(), result.tokens.begin(), result.tokens.end());
    if (entry.samples) s.phase = Phase::decode;
    if (entry.drafts > 0) shrink(s, s.computed + 1);  // drafts that were refused leave their pages
    if (result.finish) {
      end(s, emitted, *result.finish, result.error);
    } else if (emitted > 0) {
      events_.push_back({s.id, emitted, std::nullopt, {}});
    }
  }
}

void Scheduler::fail_all(const std::string& reason) {
  in_flight_ = false;
  while (!sequences_.empty()) end(sequences_.begin()->second, 0, FinishReason::error, reason);
}

std::vector<SchedulerEvent> Scheduler::take_events() { return std::exchange(events_, {}); }

// ---- what a sequence owns

const Sequence& Scheduler::sequence(RequestId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) throw Failure(fmt::format("request {} is not alive", id));
  return it->second;
}

Sequence& Scheduler::find(RequestId id) { return const_cast<Sequence&>(std::as_const(*this).sequence(id)); }

// Makes the pages of `s` hold `tokens` tokens; false and no change if the pool has too few.
bool Scheduler::grow(Sequence& s, int64_t tokens) {
  const int64_t more = pages_for(tokens) - static_cast<int64_t>(s.pages.size());
  return more <= 0 || pages_.take(more, s.pages);
}

// Gives back the pages behind `tokens` tokens.
void Scheduler::shrink(Sequence& s, int64_t tokens) {
  const auto kept = static_cast<size_t>(pages_for(tokens));
  if (kept >= s.pages.size()) return;
  pages_.give_back(std::span(s.pages).subspan(kept));
  s.pages.resize(kept);
}

// The one place where a sequence gives up what it holds; harmless for one that holds nothing.
void Scheduler::release(Sequence& s) {
  pages_.give_back(std::exchange(s.pages, {}));
  if (s.slot >= 0) slots_.give_back(std::exchange(s.slot, -1));
  running_.erase(key(s));
  waiting_.erase(key(s));
}

void Scheduler::end(Sequence& s, int64_t tokens, FinishReason reason, std::string error) {
  release(s);
  events_.push_back({s.id, tokens, reason, std::move(error)});
  sequences_.erase(s.id);
}

void Scheduler::end_for_capacity(Sequence& s) {
  end(s, 0, FinishReason::error,
      fmt::format("the MLA pages hold {} tokens, fewer than this request needs alone ({} prompt and {} generated so "
                  "far); raise "
                  "max_tokens of the engine or shorten the request",
                  pages_.total() * limits_.page_tokens, s.prompt_tokens, s.produced()));
}

// Lowest priority first, then the least work lost, then the latest arrival. The opposite end of this order is never
// retracted, so some request always gets on.
Sequence& Scheduler::victim() {
  const auto rank = [](const Sequence& s) { return std::tuple(s.priority, s.produced(), ~s.arrival); };
  const auto it = std::min_element(running_.begin(), running_.end(),
                                   [&](const auto& a, const auto& b) { return rank(*a.second) < rank(*b.second); });
  return *it->second;
}

void Scheduler::retract(Sequence& s) {
  release(s);
  s.phase = Phase::waiting;
  s.computed = 0;
  waiting_.insert(key(s));
  ++retractions_;
}

// ---- the plan

StepPlan Scheduler::plan() {
  if (in_flight_) throw Failure("a step was planned before the results of the last one were in");
  StepPlan plan;
  reserve_decodes();
  plan_decodes(plan);
  plan_prefills(plan);
  in_flight_ = !plan.empty();
  return plan;
}

// A page for the next token of every decoding request, before anyone new is let in.
void Scheduler::reserve_decodes() {
  std::vector<RequestId> decoding;
  for (const auto& [k, s] : running_) {
    if (s->phase == Phase::decode) decoding.push_back(s->id);
  }
  for (const RequestId id : decoding) {
    Sequence& s = find(id);
    while (s.phase == Phase::decode && !grow(s, s.computed + 1)) {
      if (running() == 1) {
        end_for_capacity(s);
        return;
      }
      retract(victim());
    }
  }
}

// Drafts take only pages that are left over, for one step: speculation never costs anybody a retraction.
void Scheduler::plan_decodes(StepPlan& plan) {
  for (const auto& [k, s] : running_) {
    if (s->phase != Phase::decode) continue;
    int64_t drafts = std::min(limits_.draft_tokens, s->sampling.max_tokens - s->produced() - 1);
    if (drafts < 0 || !grow(*s, s->computed + 1 + drafts)) drafts = 0;
    add_entry(plan, *s, 1, drafts);
  }
}

// First the request that was cut by the last chunk, then new ones; the last of them may be cut. So at most one is in
// the cut state.
void Scheduler::plan_prefills(StepPlan& plan) {
  int64_t budget = limits_.chunk_tokens;
  const auto add = [&](Sequence& s) {
    const int64_t left = s.size() - s.computed;
    const int64_t rows = std::min(budget, limits_.chunks ? limits_.chunks->next_chunk(s.computed, left) : left);
    budget -= rows;
    add_entry(plan, s, rows, 0);
  };
  for (const auto& [k, s] : running_) {
    if (s->phase == Phase::prefill && budget > 0) add(*s);
  }
  while (budget > 0 && !waiting_.empty()) {
    const RequestId head = waiting_.begin()->id;
    if (admit_head()) {
      add(find(head));
    } else if (sequences_.count(head) != 0) {
      break;  // it waits; nobody overtakes it
    }
  }
}

// Takes a slot and the pages of all known tokens, so that a request once let in can always finish its prefill. Beyond
// that one page per running request must stay free, so that letting it in does not at once cost a retraction.
bool Scheduler::admit_head() {
  Sequence& s = find(waiting_.begin()->id);
  const int64_t need = pages_for(s.size());
  const int64_t reserve = running_.empty() ? 0 : running() + 1;
  if (running_.empty() && need > pages_.free()) {
    end_for_capacity(s);
    return false;
  }
  if (slots_.free() < 1 || need + reserve > pages_.free()) return false;
  waiting_.erase(key(s));
  grow(s, s.size());
  s.slot = slots_.take();
  s.phase = Phase::prefill;
  running_.emplace(key(s), &s);
  return true;
}

void Scheduler::add_entry(StepPlan& plan, Sequence& s, int64_t rows, int64_t drafts) {
  const auto begin = s.tokens.begin() + s.computed;
  PlanEntry entry;
  entry.id = s.id;
  entry.slot = s.slot;
  entry.pages = s.pages;
  entry.position = s.computed;
  entry.tokens.assign(begin, begin + rows);
  entry.drafts = drafts;
  entry.samples = s.computed + rows == s.size();
  s.in_flight = true;
  plan.entries.push_back(std::move(entry));
}

}  // namespace trireme::engine
