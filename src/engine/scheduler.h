// Decides what each step runs. A pure state machine: events in (submit, cancel, results), a plan and events out; no
// clock, thread or socket. Continuous batching, chunked prefill, admission by pages and slots, retraction when pages
// run out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/id_pool.h"
#include "engine/request.h"
#include "layout/chunks.h"
#include "ops/mla.h"

namespace trireme::engine {

struct SchedulerLimits {
  int64_t chunk_tokens = 512;  // most prompt tokens in one step
  int64_t max_queue = 1024;    // requests that wait beyond those that a free slot could take
  int64_t draft_tokens = 0;    // drafted tokens per decode row; 0: no speculation
  std::optional<layout::ChunkSizer> chunks = std::nullopt;  // sizes by cost, chunk_tokens at most
  int64_t page_tokens = ops::kPageTokens;                   // tokens of a request that one page stands for
};

// A request inside the scheduler. `tokens` grow by what was produced and survive a retraction.
struct Sequence {
  enum class Phase : uint8_t { waiting, prefill, decode };
  RequestId id = 0;
  SamplingParams sampling;
  int32_t priority = 0;
  uint64_t arrival = 0;
  std::vector<int32_t> tokens;  // prompt, then output
  int64_t prompt_tokens = 0;

  Phase phase = Phase::waiting;
  int64_t computed = 0;  // leading tokens whose state is in slot and pages
  int32_t slot = -1;
  std::vector<int32_t> pages;
  bool in_flight = false;  // part of a plan whose results are not in yet
  bool cancelled = false;  // while in flight; takes effect with the results

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t produced() const { return size() - prompt_tokens; }
  std::span<const int32_t> output() const { return std::span(tokens).subspan(static_cast<size_t>(prompt_tokens)); }
};

// The part of one request in a step.
struct PlanEntry {
  RequestId id = 0;
  int32_t slot = 0;
  std::vector<int32_t> pages;  // enough for position + tokens + drafts
  int64_t position = 0;        // of the first token
  std::vector<int32_t>
      tokens;            // a chunk of the prompt (or of what a retracted request must run again), or the newest token
  int64_t drafts = 0;    // drafted tokens that may follow; only behind a single newest token
  bool samples = false;  // the last row yields a token; false: more chunks follow
};

struct StepPlan {
  std::vector<PlanEntry> entries;  // decode first, then prefill
  bool empty() const { return entries.empty(); }
};

// What a step did for the entry of the same index. n tokens for an entry that samples mean that n - 1 drafts were
// accepted and committed.
struct EntryResult {
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;  // stop, length or error
  std::string error;
};

// Something the owner of a request must hear: the first `tokens` tokens of the step's result count, and perhaps the
// end.
struct SchedulerEvent {
  RequestId id = 0;
  int64_t tokens = 0;
  std::optional<FinishReason> finish;
  std::string error;
};

class Scheduler {
 public:
  // The pools must outlive the scheduler and be used by nobody else.
  Scheduler(const SchedulerLimits& limits, cache::IdPool& pages, cache::IdPool& slots);

  // False: the queue is full, nothing was kept. Ids are new each time; the prompt is not empty and its pages fit the
  // pool.
  bool submit(RequestId id, std::vector<int32_t> prompt, SamplingParams sampling, int32_t priority);
  // Ends a request as cancelled: at once, or with the results of the step that it is in. Unknown ids and ended
  // requests: nothing.
  void cancel(RequestId id);
  // The next step. Empty: nothing can run. Throws Failure if the results of the last plan are not in.
  StepPlan plan();
  // Results of the last plan, one an entry.
  void complete(const StepPlan& plan, std::span<const EntryResult> results);
  // Ends every request with an error and returns all it holds; for an owner that has lost the thread.
  void fail_all(const std::string& reason);
  // What happened since the last call, in order. Each request gets exactly one event with a finish, its last.
  std::vector<SchedulerEvent> take_events();

  // Throws Failure for an id that is not alive. The reference holds until the request ends; tokens change only in
  // complete().
  const Sequence& sequence(RequestId id) const;
  bool idle() const { return sequences_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t retractions() const { return retractions_; }

 private:
  // Order of service: higher priority first, then by arrival, which is unique.
  struct Key {
    int64_t rank = 0;
    uint64_t arrival = 0;
    RequestId id = 0;
    bool operator<(const Key& o) const { return rank != o.rank ? rank < o.rank : arrival < o.arrival; }
  };
  static Key key(const Sequence& s) { return {-static_cast<int64_t>(s.priority), s.arrival, s.id}; }

  Sequence& find(RequestId id);
  int64_t pages_for(int64_t tokens) const { return (tokens + limits_.page_tokens - 1) / limits_.page_tokens; }
  bool grow(Sequence& s, int64_t tokens);
  void shrink(Sequence& s, int64_t tokens);
  Sequence& victim();
  void retract(Sequence& s);
  void release(Sequence& s);
  void end(Sequence& s, int64_t tokens, FinishReason reason, std::string error = {});
  void end_for_capacity(Sequence& s);
  void reserve_decodes();
  void plan_decodes(StepPlan& plan);
  void plan_prefills(StepPlan& plan);
  bool admit_head();
  void add_entry(StepPlan& plan, Sequence& s, int64_t rows, int64_t drafts);

  SchedulerLimits limits_;
  cache::IdPool& pages_;
  cache::IdPool& slots_;
  std::map<RequestId, Sequence> sequences_;  // all that are alive; node addresses are stable
  std::set<Key> waiting_;
  std::map<Key, Sequence*> running_;
  std::vector<SchedulerEvent> events_;
  uint64_t arrivals_ = 0;
  int64_t retractions_ = 0;
  bool in_flight_ = false;
};

}  // namespace trireme::engine
