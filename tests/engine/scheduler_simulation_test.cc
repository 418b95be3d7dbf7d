// The scheduler under random loads with a fake model whose next token is a hash of all tokens before it, so that any
// slip in what is run, kept or run again changes the words.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "cache/latent_cache.h"
#include "engine/scheduler.h"

namespace trireme::engine {
namespace {

constexpr int32_t kVocab = 1009;
constexpr int32_t kStop = 0;

// What the fake model keeps of the tokens it has seen.
struct FakeState {
  int64_t count = 0;
  uint64_t hash = 1;
  void fold(int32_t token) {
    ++count;
    hash = mix64(hash ^ static_cast<uint64_t>(token));
  }
  int32_t next() const { return static_cast<int32_t>(hash % kVocab); }
};

std::vector<int32_t> expected_output(const std::vector<int32_t>& prompt, int64_t max_tokens) {
  FakeState state;
  for (const int32_t t : prompt) state.fold(t);
  std::vector<int32_t> out;
  do {
    out.push_back(state.next());
    state.fold(out.back());
  } while (out.back() != kStop && static_cast<int64_t>(out.size()) < max_tokens);
  return out;
}

struct Load {
  uint64_t seed = 0;
  int64_t pages = 0, slots = 0;
  SchedulerLimits limits;
  double submit = 0.3, cancel = 0.03, flight_cancel = 0.01;  // chances per step
  int64_t longest_prompt = 0, longest_output = 0;
  int priorities = 1;
};

class Simulation {
 public:
  explicit Simulation(const Load& load)
      : load_(load), pages_("page", load.pages), slots_("slot", load.slots), scheduler_(load.limits, pages_, slots_) {}

  void run(int64_t steps) {
    for (int64_t i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) step(true);
  }
  // Without new requests everything must end.
  void drain() {
    for (int64_t i = 0; !scheduler_.idle() && !::testing::Test::HasFatalFailure(); ++i) {
      ASSERT_LT(i, 200000) << "seed " << load_.seed << ": requests starve";
      step(false);
    }
    ASSERT_TRUE(pages_.full()) << "seed " << load_.seed;
    ASSERT_TRUE(slots_.full()) << "seed " << load_.seed;
    ASSERT_EQ(ended_.size(), accepted_.size()) << "seed " << load_.seed;
  }
  const std::map<RequestId, std::vector<int32_t>>& outputs() const { return outputs_; }
  int64_t retractions() const { return scheduler_.retractions(); }
  int64_t refused() const { return refused_; }
  int64_t finished(FinishReason reason) const {
    return std::count_if(ended_.begin(), ended_.end(), [&](const auto& e) { return e.second == reason; });
  }
  int64_t accepted_drafts() const { return accepted_drafts_; }

 private:
  double chance() { return uniform_at(load_.seed, draws_++, 1); }
  int64_t below(int64_t n) { return static_cast<int64_t>(chance() * static_cast<double>(n)); }

  void submit() {
    const RequestId id = next_id_++;
    std::vector<int32_t> prompt(static_cast<size_t>(1 + below(load_.longest_prompt)));
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(mix64(id * 1000 + i) % kVocab);
    SamplingParams sampling;
    sampling.max_tokens = 1 + below(load_.longest_output);
    const auto priority = static_cast<int32_t>(below(load_.priorities));
    if (scheduler_.submit(id, prompt, sampling, priority)) {
      accepted_[id] = {prompt, sampling.max_tokens};
    } else {
      ++refused_;
      ASSERT_GE(scheduler_.waiting(), load_.limits.max_queue);
    }
  }

  void step(bool traffic) {
    if (traffic && chance() < load_.submit) submit();
    if (traffic && chance() < load_.cancel)
      scheduler_.cancel(static_cast<RequestId>(below(static_cast<int64_t>(next_id_))));
    const StepPlan plan = scheduler_.plan();
    check(plan);
    std::vector<EntryResult> results;
    for (const PlanEntry& e : plan.entries) results.push_back(execute(e));
    if (traffic && chance() < load_.flight_cancel)
      scheduler_.cancel(static_cast<RequestId>(below(static_cast<int64_t>(next_id_))));
    scheduler_.complete(plan, results);
    const auto events = scheduler_.take_events();
    ASSERT_TRUE(scheduler_.idle() || !plan.empty() || !events.empty()) << "seed " << load_.seed << ": nothing moves";
    for (const SchedulerEvent& event : events) hear(event, plan, results);
    check_pools();
  }

  void check(const StepPlan& plan) {
    std::set<int32_t> pages, slots;
    std::set<RequestId> ids;
    size_t pages_named = 0;
    int64_t prompt_rows = 0, cut = 0;
    for (const PlanEntry& e : plan.entries) {
      ids.insert(e.id);
      slots.insert(e.slot);
      pages.insert(e.pages.begin(), e.pages.end());
      pages_named += e.pages.size();
      for (const int32_t p : e.pages) ASSERT_TRUE(pages_.is_taken(p));
      ASSERT_TRUE(slots_.is_taken(e.slot));
      const auto rows = static_cast<int64_t>(e.tokens.size());
      ASSERT_GE(rows, 1);
      ASSERT_LE(cache::pages_for(e.position + rows + e.drafts), static_cast<int64_t>(e.pages.size()));
      ASSERT_LE(e.drafts, load_.limits.draft_tokens);
      const bool decode = scheduler_.sequence(e.id).phase == Sequence::Phase::decode;
      ASSERT_TRUE(decode ? rows == 1 && e.samples : e.drafts == 0);
      if (!decode) prompt_rows += rows;
      if (!e.samples) ++cut;
    }
    ASSERT_EQ(ids.size(), plan.entries.size());
    ASSERT_EQ(slots.size(), plan.entries.size());
    ASSERT_EQ(pages.size(), pages_named) << "two requests share a page";
    ASSERT_LE(static_cast<int64_t>(plan.entries.size()), load_.slots);
    ASSERT_LE(prompt_rows, load_.limits.chunk_tokens);
    ASSERT_LE(cut, 1);
    ASSERT_EQ(static_cast<int64_t>(plan.entries.size()), scheduler_.running())
        << "a running request was left out of a step";
  }

  EntryResult execute(const PlanEntry& e) {
    FakeState& state = state_[e.slot];
    if (e.position == 0) state = {};
    EXPECT_EQ(state.count, e.position) << "seed " << load_.seed << ": a gap in the state of " << e.id;
    for (const int32_t t : e.tokens) state.fold(t);
    EntryResult r;
    if (!e.samples) return r;
    const Sequence& s = scheduler_.sequence(e.id);
    for (int64_t i = 0; i <= e.drafts; ++i) {
      const int32_t token = state.next();
      r.tokens.push_back(token);
      if (token == kStop) r.finish = FinishReason::stop;
      if (!r.finish && s.produced() + static_cast<int64_t>(r.tokens.size()) == s.sampling.max_tokens)
        r.finish = FinishReason::length;
      if (r.finish || i == e.drafts || chance() < 0.3) break;  // the draft is wrong
      state.fold(token);
      ++accepted_drafts_;
    }
    return r;
  }

  void hear(const SchedulerEvent& event, const StepPlan& plan, const std::vector<EntryResult>& results) {
    ASSERT_TRUE(accepted_.count(event.id));
    ASSERT_FALSE(ended_.count(event.id)) << "seed " << load_.seed << ": an event after the last";
    if (event.tokens > 0) {
      const auto it =
          std::find_if(plan.entries.begin(), plan.entries.end(), [&](const auto& e) { return e.id == event.id; });
      ASSERT_NE(it, plan.entries.end());
      const auto& tokens = results[static_cast<size_t>(it - plan.entries.begin())].tokens;
      ASSERT_EQ(static_cast<int64_t>(tokens.size()), event.tokens);
      auto& out = outputs_[event.id];
      if (out.empty()) check_first_come(event.id);
      out.insert(out.end(), tokens.begin(), tokens.end());
    }
    if (!event.finish) return;
    ended_[event.id] = *event.finish;
    const auto& [prompt, max_tokens] = accepted_[event.id];
    const auto want = expected_output(prompt, max_tokens);
    const auto& got = outputs_[event.id];
    ASSERT_LE(got.size(), want.size());
    ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << "seed " << load_.seed << " request " << event.id;
    const bool whole = *event.finish == FinishReason::stop || *event.finish == FinishReason::length;
    ASSERT_TRUE(!whole || got == want) << "seed " << load_.seed << " request " << event.id;
  }

  // With one priority the first tokens come in order of arrival.
  void check_first_come(RequestId id) {
    if (load_.priorities == 1) {
      ASSERT_GT(id, last_first_token_);
      last_first_token_ = id;
    }
  }

  void check_pools() {
    int64_t pages = 0, slots = 0;
    for (const auto& [id, what] : accepted_) {
      if (ended_.count(id)) continue;
      const Sequence& s = scheduler_.sequence(id);
      pages += static_cast<int64_t>(s.pages.size());
      slots += s.slot >= 0 ? 1 : 0;
      ASSERT_EQ(s.phase == Sequence::Phase::waiting, s.slot < 0);
    }
    ASSERT_EQ(pages + pages_.free(), pages_.total()) << "seed " << load_.seed;
    ASSERT_EQ(slots + slots_.free(), slots_.total()) << "seed " << load_.seed;
  }

  Load load_;
  cache::IdPool pages_, slots_;
  Scheduler scheduler_;
  uint64_t draws_ = 0;
  RequestId next_id_ = 1;
  RequestId last_first_token_ = 0;
  int64_t refused_ = 0;
  int64_t accepted_drafts_ = 0;
  std::map<RequestId, std::pair<std::vector<int32_t>, int64_t>> accepted_;
  std::map<RequestId, std::vector<int32_t>> outputs_;
  std::map<RequestId, FinishReason> ended_;
  std::map<int32_t, FakeState> state_;  // by slot
};

Load random_load(uint64_t seed) {
  const auto pick = [&](uint64_t what, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(uniform_at(seed, what, 9) * static_cast<double>(high - low + 1));
  };
  Load load;
  load.seed = seed;
  load.pages = pick(0, 4, 40);
  load.slots = pick(1, 1, 12);
  load.limits.chunk_tokens = pick(2, 1, 200);
  load.limits.max_queue = pick(3, 0, 20);
  load.limits.draft_tokens = seed % 2 == 0 ? 0 : pick(4, 1, 7);
  load.submit = uniform_at(seed, 5, 9) * 0.5;
  load.longest_prompt = std::min<int64_t>(load.pages * 64, 400);
  load.longest_output = pick(6, 1, 700);
  load.priorities = static_cast<int>(pick(7, 1, 3));
  return load;
}

TEST(SchedulerSimulation, InvariantsHoldUnderRandomLoads) {
  int64_t retractions = 0, refused = 0, cancelled = 0, capacity = 0, drafts = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Simulation simulation(random_load(seed));
    simulation.run(500);
    if (HasFatalFailure()) return;
    simulation.drain();
    if (HasFatalFailure()) return;
    retractions += simulation.retractions();
    refused += simulation.refused();
    cancelled += simulation.finished(FinishReason::cancelled);
    capacity += simulation.finished(FinishReason::error);
    drafts += simulation.accepted_drafts();
  }
  // The loads must reach every corner, or the invariants above were not tried.
  EXPECT_GT(retractions, 50);
  EXPECT_GT(refused, 50);
  EXPECT_GT(cancelled, 50);
  EXPECT_GT(capacity, 3);
  EXPECT_GT(drafts, 1000);
}

TEST(SchedulerSimulation, RetractionDoesNotChangeTheWords) {
  int64_t retractions = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Load load;
    load.seed = seed;
    load.slots = 8;
    load.limits.chunk_tokens = 64;
    load.limits.max_queue = 1000;
    load.longest_prompt = 200;
    load.longest_output = 500;
    load.cancel = load.flight_cancel = 0;
    load.pages = 500;  // never short
    Simulation ample(load);
    ample.run(200);
    ample.drain();
    load.pages = 12;  // one request may need 11
    Simulation tight(load);
    tight.run(200);
    tight.drain();
    if (HasFatalFailure()) return;
    EXPECT_EQ(ample.retractions(), 0);
    retractions += tight.retractions();
    EXPECT_EQ(ample.outputs(), tight.outputs()) << "seed " << seed;
  }
  EXPECT_GT(retractions, 20);
}

}  // namespace
}  // namespace trireme::engine
