#include "engine/stage_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/stage_simulator.h"

namespace trireme::engine {
namespace {

using simulated::Fault;
using simulated::Outcome;
using simulated::Scenario;
using simulated::Simulator;

std::string words(const std::vector<StageAction>& list) {
  std::string text;
  for (const StageAction& a : list) {
    if (!text.empty()) text += ", ";
    text += std::string(stage_step_name(a.step)) + (a.lane == Lane::side ? "* " : " ") + std::to_string(a.micro_batch);
  }
  return text;
}

layout::EagerBank eager(std::vector<int64_t> stages, bool prefetch) { return {true, std::move(stages), prefetch}; }

// Rows that each stage writes: some none, some two.
std::vector<int64_t> some_rows(int64_t stages, uint64_t seed) {
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < stages; ++s) {
    rows.push_back(static_cast<int64_t>(mix64(seed * 100 + static_cast<uint64_t>(s)) % 3));
  }
  return rows;
}

TEST(TickArithmetic, SlotsAndTicks) {
  EXPECT_EQ(pipeline_slots(16, 2), 18);
  EXPECT_EQ(run_tick(0, 5), 5);
  EXPECT_EQ(run_tick(15, 5), 20);
  EXPECT_EQ(output_tick(5, 16, 2), 22);
  for (const int64_t stages : {1, 2, 3, 16}) {
    for (const int64_t depth : {0, 1, 2}) {
      const int64_t slots = pipeline_slots(stages, depth);
      for (int64_t m = 0; m < 3 * slots; ++m) {
        EXPECT_EQ(slot_of(m, slots), slot_of(m + slots, slots));
        EXPECT_NE(slot_of(m, slots), slot_of(m + 1, slots) + (slots == 1 ? 1 : 0));
        // Known when the last stage has run it (and depth ticks later), and just before its slot starts again on stage
        // 0.
        EXPECT_EQ(output_tick(m, stages, depth), run_tick(stages - 1, m) + depth);
        EXPECT_EQ(output_tick(m, stages, depth) + 1, run_tick(0, m + slots));
      }
    }
  }
  // 16 stages, depth 2: the early last chunk saves each later stage 16 ticks.
  EXPECT_EQ(relay_ticks(16, 2) - early_last_chunk_ticks(), 16);
}

TEST(TickArithmetic, HopsAreThoseOfARing) {
  for (const int64_t stages : {2, 3, 8, 16}) {
    // A set goes from stage to stage, a hop a tick: one turn gathers it, the next one tells every stage.
    std::vector<int64_t> acts(static_cast<size_t>(stages), -1);
    int64_t at = 0, known = -1, tick = 0;
    while (std::find(acts.begin(), acts.end(), -1) != acts.end()) {
      if (at == 0 && tick > 0) known = tick;
      if (known >= 0) acts[static_cast<size_t>(at)] = tick;
      at = (at + 1) % stages;
      ++tick;
    }
    for (int64_t s = 0; s < stages; ++s) {
      EXPECT_EQ(ring_hops(stages, s), (Hops{known, acts[static_cast<size_t>(s)], tick - 1}));
      EXPECT_EQ(side_band_hops(stages, s), (Hops{0, s, stages - 1}));
    }
    EXPECT_EQ(tick - 1, 2 * stages - 1);
  }
}

TEST(StageOrder, WithoutEagerProxyCarriesAllRows) {
  StageOrder order(stage_config(std::vector<int64_t>{1, 2, 0}, {}, 0, 1));
  const auto first = order.next(false);
  EXPECT_EQ(words(first), "receive PROXY 0, forward 0, send PROXY 0");
  EXPECT_EQ(first[0].bank_rows, 1);
  EXPECT_EQ(first[2].bank_rows, 3);
  EXPECT_EQ(words(order.next(true)), "");
  const auto third = order.next(false);
  EXPECT_EQ(third[0].seq, 1);  // the empty one had none
  EXPECT_EQ(words(order.next(false)), "wait for sends 3, receive PROXY 3, forward 3, send PROXY 3");
  EXPECT_EQ(words(order.next(false)), "receive PROXY 4, forward 4, send PROXY 4");  // 1 was empty: nothing was sent
}

TEST(StageOrder, BankGoesOnBeforeTheForwardAndTheNextOneIsReceivedAhead) {
  // The stage before writes none, so that all inherited rows come with BANK.
  StageOrder order(stage_config(std::vector<int64_t>{1, 0, 1, 0}, eager({1, 2}, true), 0, 2));
  const auto first = order.next(false);
  EXPECT_EQ(words(first), "receive BANK* 0, send BANK* 0, prefetch BANK* 1, receive PROXY 0, forward 0, send PROXY 0");
  EXPECT_FALSE(first[0].prefetched);
  EXPECT_EQ(first[1].bank_rows, 1);
  EXPECT_EQ(first[1].needs, (std::vector<StageAction::Need>{{StageStep::receive_bank, 0}}));
  EXPECT_EQ(first[3].bank_rows, 0);
  EXPECT_EQ(first[5].bank_first, 1);  // what was written here
  EXPECT_EQ(first[5].bank_rows, 1);
  EXPECT_EQ(first[2].bank_buffer, 1);

  const auto second = order.next(true);
  EXPECT_EQ(words(second), "receive BANK* 1, send BANK* 1, prefetch BANK* 2");
  EXPECT_TRUE(second[0].prefetched);
  EXPECT_EQ(second[1].bank_rows, 0);
  EXPECT_EQ(second[2].bank_buffer, 0);
  EXPECT_EQ(second[2].needs, (std::vector<StageAction::Need>{{StageStep::forward, 0}, {StageStep::send_bank, 0}}));

  EXPECT_EQ(words(order.next(false, true)), "receive BANK* 2, send BANK* 2, receive PROXY 2, forward 2, send PROXY 2");
  EXPECT_THROW(order.next(true), Failure);
}

TEST(StageOrder, BankThatComesWithProxyGoesOnBeforeTheForward) {
  StageOrder order(stage_config(std::vector<int64_t>{1, 0, 0}, eager({1}, true), 1, 1));
  const auto list = order.next(false);
  EXPECT_EQ(words(list), "receive PROXY 0, send BANK* 0, forward 0, send PROXY 0");
  EXPECT_EQ(list[1].needs, (std::vector<StageAction::Need>{{StageStep::receive_proxy, 0}}));
  EXPECT_EQ(words(order.next(true)), "send BANK* 1");  // an empty one, at once
}

TEST(StageOrder, ConfigComesFromTheRowsOfAllStages) {
  const std::vector<int64_t> rows = {1, 0, 2, 0};
  const StageConfig third = stage_config(rows, eager({}, true), 2, 2);
  EXPECT_EQ(third.slots, 6);
  EXPECT_EQ(third.bank_rows_early, 1);
  EXPECT_EQ(third.bank_rows_in, 1);
  EXPECT_EQ(third.bank_rows_out, 3);
  EXPECT_TRUE(third.eager_in && third.eager_out && third.prefetch);
  EXPECT_FALSE(stage_config(rows, eager({}, true), 2, 0).eager_out);  // inherits nothing
  EXPECT_FALSE(stage_config(rows, eager({}, true), 2, 3).eager_out);  // has no edge out
  EXPECT_FALSE(stage_config(rows, {}, 2, 2).eager_in);
  EXPECT_THROW(stage_config(rows, eager({3}, true), 2, 0), BadInput);
  EXPECT_THROW(stage_config(rows, eager({-1}, true), 2, 0), BadInput);
  EXPECT_THROW(stage_config(rows, {}, 2, 4), BadInput);
}

TEST(StageOrder, ConfigsThatContradictThemselvesAreRefused) {
  const StageConfig good = stage_config(std::vector<int64_t>{1, 0, 2, 0}, eager({1, 2}, true), 0, 2);
  const auto refused = [&](auto member, auto value) {
    StageConfig config = good;
    config.*member = value;
    try {
      StageOrder order(config);
      return false;
    } catch (const BadInput&) {
      return true;
    }
  };
  EXPECT_NO_THROW(StageOrder{good});
  EXPECT_TRUE(refused(&StageConfig::stage, 4));
  EXPECT_TRUE(refused(&StageConfig::stage, -1));
  EXPECT_TRUE(refused(&StageConfig::stage, 0));   // the first stage inherits nothing
  EXPECT_TRUE(refused(&StageConfig::stages, 3));  // the last one sends nothing
  EXPECT_TRUE(refused(&StageConfig::slots, 3));
  EXPECT_TRUE(refused(&StageConfig::bank_rows_early, 2));
  EXPECT_TRUE(refused(&StageConfig::bank_rows_out, 0));
  EXPECT_TRUE(refused(&StageConfig::eager_in, false));
}

// The rules of one stage's lists, for random stages and micro-batches.
TEST(StageOrder, ListsKeepTheRules) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto stages = static_cast<int64_t>(1 + mix64(seed) % 6);
    const auto rows = some_rows(stages, seed);
    layout::EagerBank bank = eager({}, seed % 2 == 0);
    for (int64_t s = 0; s + 1 < stages; ++s) {
      if (mix64(seed + 7 * static_cast<uint64_t>(s)) % 2 == 0) bank.stages.push_back(s);
    }
    const auto depth = static_cast<int64_t>(seed % 3);
    const auto stage = static_cast<int64_t>(mix64(seed + 99) % static_cast<uint64_t>(stages));
    const StageConfig config = stage_config(rows, bank, depth, stage);
    StageOrder order(config);
    std::set<std::pair<StageStep, int64_t>> issued;
    int64_t proxies = 0;
    for (int64_t m = 0; m < 60; ++m) {
      const bool empty = mix64(seed * 1000 + static_cast<uint64_t>(m)) % 3 == 0;
      const auto list = order.next(empty, m == 59);
      std::array<int64_t, kStageSteps> count{}, place{};
      for (size_t i = 0; i < list.size(); ++i) {
        const StageAction& a = list[i];
        ++count[static_cast<size_t>(a.step)];
        place[static_cast<size_t>(a.step)] = static_cast<int64_t>(i);
        EXPECT_EQ(a.micro_batch, a.step == StageStep::prefetch_bank ? m + 1 : m);
        EXPECT_EQ(a.slot, a.micro_batch % (stages + depth));
        // What is waited for was issued before, so that lanes in list order cannot wait for each other.
        for (const auto& need : a.needs) EXPECT_TRUE(issued.count({need.step, need.micro_batch})) << words(list);
        issued.insert({a.step, a.micro_batch});
        if (a.step == StageStep::receive_proxy || a.step == StageStep::send_proxy) {
          EXPECT_EQ(a.seq, proxies);
        }
        if (a.step == StageStep::receive_bank || a.step == StageStep::send_bank) {
          EXPECT_EQ(a.seq, m);
        }
      }
      const auto n = [&](StageStep step) { return count[static_cast<size_t>(step)]; };
      const auto at = [&](StageStep step) { return place[static_cast<size_t>(step)]; };
      EXPECT_EQ(n(StageStep::receive_bank), config.eager_in ? 1 : 0);
      EXPECT_EQ(n(StageStep::send_bank), config.eager_out ? 1 : 0);
      EXPECT_EQ(n(StageStep::prefetch_bank), config.prefetch && m < 59 ? 1 : 0);
      EXPECT_EQ(n(StageStep::forward), empty ? 0 : 1);
      EXPECT_EQ(n(StageStep::receive_proxy), !empty && stage > 0 ? 1 : 0);
      EXPECT_EQ(n(StageStep::send_proxy), !empty && stage + 1 < stages ? 1 : 0);
      if (!empty) {
        if (config.eager_in && stage > 0) {
          EXPECT_LT(at(StageStep::receive_bank), at(StageStep::receive_proxy));
        }
        if (config.eager_out) {
          EXPECT_LT(at(StageStep::send_bank), at(StageStep::forward));
        }
        if (stage + 1 < stages) {
          EXPECT_LT(at(StageStep::forward), at(StageStep::send_proxy));
        }
        ++proxies;
      }
    }
  }
}

// Every forward saw the right rows (else there is an error), all ended, and each edge carried what it must.
void expect_complete(const Scenario& scenario) {
  const Simulator simulator(scenario);
  const Outcome outcome = Simulator(scenario).run();
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.deadlock, "");
  int64_t batches = 0, rows = 0, bank = 0;
  for (int64_t m = 0; m < scenario.ticks; ++m) {
    batches += simulator.empty(m) ? 0 : 1;
    rows += simulator.rows(m);
  }
  const auto stages = static_cast<int64_t>(scenario.rows_written.size());
  EXPECT_EQ(outcome.forwards, batches * stages);
  for (int64_t s = 0; s + 1 < stages; ++s) {
    const auto edge = static_cast<size_t>(s);
    const int64_t inherited = bank;
    bank += scenario.rows_written[edge];
    const bool sends_bank = stage_config(scenario.rows_written, scenario.eager, scenario.depth, s).eager_out;
    EXPECT_EQ(outcome.banks[edge], sends_bank ? scenario.ticks : 0);
    EXPECT_EQ(outcome.bank_values[edge], sends_bank ? inherited * rows * simulated::kColumns : 0);
    EXPECT_EQ(outcome.proxies[edge], batches);
    EXPECT_EQ(outcome.bank_values[edge] + outcome.proxy_values[edge], (bank + 1) * rows * simulated::kColumns);
  }
}

std::vector<Scenario> every_mode(int64_t stages, int64_t ticks) {
  std::vector<Scenario> scenarios;
  std::vector<int64_t> some, all;
  for (int64_t s = 0; s + 1 < stages; ++s) {
    all.push_back(s);
    if (mix64(static_cast<uint64_t>(stages * 31 + s)) % 2 == 0) some.push_back(s);
  }
  std::vector<layout::EagerBank> banks = {{}};
  for (const bool prefetch : {false, true}) {
    banks.push_back(eager(all, prefetch));
    if (!some.empty() && some != all) banks.push_back(eager(some, prefetch));
  }
  for (size_t i = 0; i < banks.size(); ++i) {
    Scenario scenario;
    scenario.seed = static_cast<uint64_t>(stages) * 10 + i;
    scenario.rows_written = some_rows(stages, scenario.seed);
    scenario.eager = banks[i];
    scenario.depth = static_cast<int64_t>(i % 3);
    scenario.ticks = ticks;
    scenarios.push_back(scenario);
  }
  return scenarios;
}

TEST(StageSimulation, TenThousandTicksInEveryModeEnd) {
  for (const int64_t stages : {1, 2, 3, 4, 8, 16}) {
    int64_t round = stages;
    for (Scenario scenario : every_mode(stages, 10000)) {
      scenario.posted_proxy = ++round % 2 == 0;
      scenario.ahead = round % 3;
      SCOPED_TRACE(fmt::format("{} stages, seed {}", stages, scenario.seed));
      expect_complete(scenario);
    }
  }
}

TEST(StageSimulation, AnyTransportAndIssueEnd) {
  for (const int64_t stages : {2, 3, 8}) {
    for (Scenario scenario : every_mode(stages, 200)) {
      for (const int64_t capacity : {int64_t{0}, scenario.capacity, int64_t{500}, int64_t{1} << 40}) {
        for (int mode = 0; mode < 4; ++mode) {
          scenario.capacity = capacity;
          scenario.posted_proxy = mode % 2 == 1;
          scenario.ahead = mode / 2 * 2;
          SCOPED_TRACE(fmt::format("{} stages, seed {}, capacity {}, mode {}", stages, scenario.seed, capacity, mode));
          expect_complete(scenario);
        }
      }
    }
  }
}

Scenario four_eager_stages(bool prefetch) {
  Scenario scenario;
  scenario.rows_written = {1, 0, 1, 0, 1, 0};
  scenario.eager = eager({1, 2, 3, 4}, prefetch);
  scenario.ticks = 1000;
  scenario.depth = 2;
  scenario.seed = 5;
  return scenario;
}

TEST(StageSimulation, ProxyBeforeBankStandsStill) {
  Scenario scenario = four_eager_stages(false);
  scenario.one_lane = true;
  expect_complete(scenario);  // the right order on the same lane and channels
  scenario.fault = Fault::proxy_before_bank;
  const Outcome stuck = Simulator(scenario).run();
  EXPECT_EQ(stuck.error, "");
  EXPECT_NE(stuck.deadlock.find("stage 1 main lane: send BANK"), std::string::npos) << stuck.deadlock;
  EXPECT_NE(stuck.deadlock.find("stage 2 main lane: receive PROXY"), std::string::npos) << stuck.deadlock;
  // A transport that holds any message hides it.
  scenario.capacity = int64_t{1} << 40;
  expect_complete(scenario);
}

TEST(StageSimulation, PrefetchNeedsALaneOfItsOwn) {
  Scenario scenario = four_eager_stages(true);
  expect_complete(scenario);
  scenario.one_lane = true;
  EXPECT_NE(Simulator(scenario).run().deadlock, "");
}

std::string error_of(Scenario scenario, Fault fault) {
  scenario.fault = fault;
  const Outcome outcome = Simulator(scenario).run();
  EXPECT_EQ(outcome.deadlock, "");
  return outcome.error;
}

// Each need in the lists is there for a reason.
TEST(StageSimulation, WithoutItsNeedsAStageUsesBuffersTooEarly) {
  Scenario scenario = four_eager_stages(true);
  scenario.posted_proxy = true;
  expect_complete(scenario);
  EXPECT_NE(error_of(scenario, Fault::no_wait_sends).find("writes a buffer that is in use"), std::string::npos);
  EXPECT_NE(error_of(scenario, Fault::no_forward_needs), "");
  scenario.ahead = 2;
  expect_complete(scenario);
  EXPECT_NE(error_of(scenario, Fault::no_buffer_needs).find("prefetch BANK writes a buffer that is in use"),
            std::string::npos);
  // On the thread that issues, only a send onward by PROXY still reads the buffer.
  scenario.ahead = 0;
  scenario.eager.stages = {2};
  expect_complete(scenario);
  EXPECT_NE(error_of(scenario, Fault::no_buffer_needs).find("prefetch BANK writes a buffer that is in use"),
            std::string::npos);
}

TEST(StageSimulation, LostDoubledAndOtherBatchesAreFound) {
  for (const bool prefetch : {false, true}) {
    const Scenario scenario = four_eager_stages(prefetch);
    EXPECT_NE(error_of(scenario, Fault::lose_bank).find("stages 2 -> 3, BANK number"), std::string::npos);
    EXPECT_NE(error_of(scenario, Fault::lose_proxy).find("stages 2 -> 3, PROXY number"), std::string::npos);
    EXPECT_NE(error_of(scenario, Fault::double_bank).find("seq is"), std::string::npos);
    EXPECT_NE(error_of(scenario, Fault::other_batch).find("batch digest is"), std::string::npos);
    EXPECT_NE(error_of(scenario, Fault::other_batch_is_empty).find("batch digest is"), std::string::npos);
  }
}

// What the eager bank is for: on a slow edge the bank moves during the sender's forward.
TEST(StageSimulation, EagerBankHidesASlowEdge) {
  Scenario scenario;
  scenario.rows_written = {2, 2, 2, 0, 2, 0};
  scenario.ticks = 500;
  scenario.steady = true;
  scenario.slow_edge = 3;
  const Outcome plain = Simulator(scenario).run();
  scenario.eager = eager({3}, false);
  const Outcome bank = Simulator(scenario).run();
  scenario.eager.prefetch = true;
  const Outcome prefetched = Simulator(scenario).run();
  EXPECT_LT(bank.time, plain.time);
  EXPECT_LT(static_cast<double>(prefetched.time), 0.7 * static_cast<double>(plain.time));
  EXPECT_EQ(plain.error + plain.deadlock + bank.error + bank.deadlock + prefetched.error + prefetched.deadlock, "");
}

}  // namespace
}  // namespace trireme::engine
