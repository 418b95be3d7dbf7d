// A pipeline of stages, each driven by its StageOrder, in virtual time on one thread: two lanes a stage, channels that
// hold a bounded number of bytes, stages of random speed. Every row carries which micro-batch and bank row it is, every
// buffer knows who reads and writes it; a wrong row, a buffer written while it is read, a wrong header and a standstill
// end the run with a word about it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/stage_order.h"

namespace trireme::engine::simulated {

constexpr int64_t kColumns = 3;
constexpr int64_t kMaxBank = 40;

// What is done wrong on purpose.
enum class Fault : uint8_t {
  none,
  proxy_before_bank,     // the receiver takes PROXY before BANK
  no_wait_sends,         // slots are used again at once
  no_buffer_needs,       // BANK buffers are
  no_forward_needs,      // the forward does not wait for the side lane
  lose_bank,             // one message never arrives
  lose_proxy,            //
  double_bank,           // one arrives twice
  other_batch,           // one stage builds another batch in one tick
  other_batch_is_empty,  // or none
};

struct Scenario {
  std::vector<int64_t> rows_written;
  layout::EagerBank eager;
  int64_t depth = 0;
  int64_t ticks = 10000;
  uint64_t seed = 1;
  int64_t capacity = kStageHeaderBytes + kColumns - 1;  // of each channel: an empty BANK and no other message
  bool posted_proxy = false;                            // sending PROXY does not hold up the main lane
  int64_t ahead = 0;                                    // ticks given to the lanes before the main lane reaches them
  bool one_lane = false;
  int64_t slow_edge = -1;  // takes 10 times as long for each byte
  bool steady = false;     // all forwards take the same time and no micro-batch is empty
  Fault fault = Fault::none;
};

struct Outcome {
  std::string error;     // a rule that was broken, or what a check threw
  std::string deadlock;  // what each lane waits for
  int64_t time = 0;
  int64_t forwards = 0;
  std::vector<int64_t> bank_values, proxy_values, banks, proxies;  // by edge
};

struct Broken {
  std::string what;
};

// Identities: one 64-bit word stands for a row of every token.
struct RowIds {
  std::array<uint64_t, kMaxBank> id{};
  int64_t count = 0;
  void add(uint64_t value) { id[static_cast<size_t>(count++)] = value; }
};
inline uint64_t bank_id(int64_t micro_batch, int64_t row) {
  return mix64(static_cast<uint64_t>(micro_batch * 256 + row));
}
inline uint64_t hidden_id(int64_t micro_batch, int64_t stage) { return ~bank_id(micro_batch, stage); }

// A piece of memory. Who writes it must be alone.
struct Place {
  RowIds rows;
  StageHeaderBytes header{};
  int readers = 0;
  bool writing = false;
};

struct Message {
  StageHeaderBytes header{};
  RowIds rows;
  int64_t bytes = 0;
  StageAction action;  // of the sender
  bool sent = false;
};

struct Channel {
  std::deque<Message> queue;
  bool receiving = false;
};

struct LaneState {
  std::deque<StageAction> queue;
  enum class State : uint8_t { idle, running, sending } state = State::idle;
};

struct Stage {
  explicit Stage(const StageConfig& c)
      : order(c), config(c), in(static_cast<size_t>(c.slots)), out(static_cast<size_t>(c.slots)) {
    done.fill(-1);
  }
  StageOrder order;
  StageConfig config;
  std::array<LaneState, 2> lanes;
  std::array<Place, kBankBuffers> bank;
  std::vector<Place> in, out;               // by slot: what PROXY brought; hidden rows and rows written here
  std::array<int64_t, kStageSteps> done{};  // newest micro-batch whose step ended
};

class Simulator {
 public:
  explicit Simulator(const Scenario& scenario) : scenario_(scenario) {
    const auto stages = static_cast<int64_t>(scenario.rows_written.size());
    for (int64_t s = 0; s < stages; ++s) {
      stages_.emplace_back(stage_config(scenario.rows_written, scenario.eager, scenario.depth, s));
    }
    const auto edges = static_cast<size_t>(stages - 1);
    channels_.resize(edges);
    outcome_.bank_values.resize(edges);
    outcome_.proxy_values = outcome_.banks = outcome_.proxies = outcome_.bank_values;
    odd_stage_ = stages / 2;
    for (int64_t m = 0; m < scenario.ticks; ++m) rows_.push_back(draw_rows(m));
    while (odd_tick_ < scenario.ticks - 1 && empty(odd_tick_)) ++odd_tick_;
  }

  int64_t rows(int64_t m) const { return rows_[static_cast<size_t>(m)]; }  // 0: an empty micro-batch
  bool empty(int64_t m) const { return rows(m) == 0; }

  Outcome run() {
    try {
      for (size_t s = 0; s < stages_.size(); ++s) poll(s);
      while (!events_.empty()) {
        const auto [time, number, stage, lane] = events_.top();
        events_.pop();
        outcome_.time = time;
        finish(stage, lane);
      }
      outcome_.deadlock = stuck();
    } catch (const Broken& broken) {
      outcome_.error = broken.what;
    } catch (const Failure& failure) {
      outcome_.error = failure.what();
    }
    return outcome_;
  }

 private:
  int64_t batch_rows(const Stage& stage, int64_t m) const {
    if (stage.config.stage == odd_stage_ && m == odd_tick_) {
      if (scenario_.fault == Fault::other_batch) return rows(m) + 1;
      if (scenario_.fault == Fault::other_batch_is_empty) return 0;
    }
    return rows(m);
  }
  int64_t draw_rows(int64_t m) const {
    if (scenario_.steady) return 4;
    const auto n = static_cast<uint64_t>(m);
    const bool single = uniform_at(scenario_.seed, n, 1) < 0.3, drought = uniform_at(scenario_.seed, n / 32, 2) < 0.2;
    return single || drought ? 0 : 1 + static_cast<int64_t>(mix64(scenario_.seed ^ n) % 7);
  }
  StageHeader header(const Stage& stage, const StageAction& action) const {
    const int64_t n = batch_rows(stage, action.micro_batch);
    const std::array<int64_t, 2> fields = {action.micro_batch, n};
    return message_header(action, stage.config, n == 0 ? 0 : batch_digest(fields), n, kColumns);
  }

  void issue(Stage& stage) {
    const int64_t m = stage.order.micro_batch();
    std::vector<StageAction> list = stage.order.next(batch_rows(stage, m) == 0, m + 1 == scenario_.ticks);
    if (scenario_.fault == Fault::proxy_before_bank) {
      std::stable_partition(list.begin(), list.end(), [](const StageAction& action) {
        return action.step == StageStep::wait_sends || action.step == StageStep::receive_proxy;
      });
    }
    for (StageAction& action : list) {
      if (scenario_.one_lane) action.lane = Lane::main;
      // With nothing ahead the main lane is the thread that hands work to the side lane when it comes to it.
      const bool side = scenario_.ahead > 0 && action.lane == Lane::side;
      stage.lanes[side ? 1 : 0].queue.push_back(std::move(action));
    }
  }

  void refill(Stage& stage) {
    auto& main = stage.lanes[0].queue;
    const auto wants = [&] {
      const int64_t next = stage.order.micro_batch();
      return next < scenario_.ticks && (main.empty() || next <= main.front().micro_batch + scenario_.ahead);
    };
    while (wants()) issue(stage);
  }

  // Starts whatever can start on the stage.
  void poll(size_t s) {
    Stage& stage = stages_[s];
    bool moved = true;
    while (moved) {
      moved = false;
      if (stage.lanes[0].state == LaneState::State::idle) {
        refill(stage);
        auto& queue = stage.lanes[0].queue;
        if (!queue.empty() && queue.front().lane == Lane::side) {
          stage.lanes[1].queue.push_back(std::move(queue.front()));
          queue.pop_front();
          moved = true;
          continue;
        }
      }
      for (size_t lane = 0; lane < 2; ++lane) {
        LaneState& state = stage.lanes[lane];
        if (state.state == LaneState::State::idle && !state.queue.empty() && ready(stage, state.queue.front())) {
          begin(s, lane);
          moved = true;
        }
      }
    }
  }

  bool ignores_needs(const StageAction& action) const {
    switch (scenario_.fault) {
      case Fault::no_wait_sends:
        return action.step == StageStep::wait_sends;
      case Fault::no_buffer_needs:
        return action.step == StageStep::prefetch_bank ||
               (action.step == StageStep::receive_bank && !action.prefetched);
      case Fault::no_forward_needs:
        return action.step == StageStep::forward;
      default:
        return false;
    }
  }
  static bool transfers_in(const StageAction& action) {
    return action.step == StageStep::receive_proxy || action.step == StageStep::prefetch_bank ||
           (action.step == StageStep::receive_bank && !action.prefetched);
  }
  Channel& channel(int64_t from, bool proxy) { return channels_[static_cast<size_t>(from)][proxy ? 1 : 0]; }
  Channel& incoming(const Stage& stage, const StageAction& action) {
    return channel(stage.config.stage - 1, action.step == StageStep::receive_proxy);
  }

  bool ready(const Stage& stage, const StageAction& action) {
    if (!ignores_needs(action)) {
      for (const auto& need : action.needs) {
        if (stage.done[static_cast<size_t>(need.step)] < need.micro_batch) return false;
      }
    }
    return !transfers_in(action) || !incoming(stage, action).queue.empty();
  }

  // Everything of the stage that the action reads while it runs.
  template <typename F>
  void for_each_read(Stage& stage, const StageAction& action, F&& f) {
    const auto slot = static_cast<size_t>(action.slot);
    const bool computes = action.step == StageStep::forward;
    const bool sends_proxy = action.step == StageStep::send_proxy;
    const bool inherited = computes || action.bank_first < stage.config.bank_rows_in;
    const int64_t early = stage.config.eager_in ? stage.config.bank_rows_early : 0;
    if (!computes && !sends_proxy && action.step != StageStep::send_bank) return;
    if (!computes && !sends_proxy && action.bank_rows == 0) return;
    if (inherited && early > 0) f(stage.bank[static_cast<size_t>(action.bank_buffer)]);
    if (stage.config.stage > 0 && (computes || (inherited && stage.config.bank_rows_in > early))) f(stage.in[slot]);
    if (sends_proxy) f(stage.out[slot]);
  }
  Place* written(Stage& stage, const StageAction& action) {
    if (action.step == StageStep::receive_proxy) return &stage.in[static_cast<size_t>(action.slot)];
    if (action.step == StageStep::forward) return &stage.out[static_cast<size_t>(action.slot)];
    if (transfers_in(action)) return &stage.bank[static_cast<size_t>(action.bank_buffer)];
    return nullptr;
  }

  void begin(size_t s, size_t lane) {
    Stage& stage = stages_[s];
    LaneState& state = stage.lanes[lane];
    const StageAction& action = state.queue.front();
    for_each_read(stage, action, [&](Place& place) {
      if (place.writing) broken(stage, action, "reads a buffer while it is written");
      ++place.readers;
    });
    if (Place* place = written(stage, action)) {
      if (place->writing || place->readers > 0) broken(stage, action, "writes a buffer that is in use");
      place->writing = true;
    }
    if (action.step == StageStep::send_bank || action.step == StageStep::send_proxy) return post(s, lane);
    state.state = LaneState::State::running;
    int64_t takes = 0;
    if (transfers_in(action)) {
      const int64_t values = incoming(stage, action).queue.front().bytes - kStageHeaderBytes;
      takes = scenario_.steady ? values * (scenario_.slow_edge == stage.config.stage - 1 ? 10 : 1) : 1 + random() % 20;
    } else if (action.step == StageStep::forward) {
      takes = scenario_.steady ? 1000 : 10 + static_cast<int64_t>(mix64(scenario_.seed + s) % 100) + random() % 100;
    }
    events_.push({outcome_.time + takes, ++event_number_, s, lane});
  }

  void finish(size_t s, size_t lane) {
    Stage& stage = stages_[s];
    const StageAction action = std::move(stage.lanes[lane].queue.front());
    stage.lanes[lane].queue.pop_front();
    stage.lanes[lane].state = LaneState::State::idle;
    if (Place* place = written(stage, action)) place->writing = false;
    if (transfers_in(action)) {
      take(stage, action);
    } else if (action.step == StageStep::forward) {
      compute(stage, action);
    }
    if (action.step == StageStep::receive_bank) {
      check_header(header(stage, action), decode_header(stage.bank[static_cast<size_t>(action.bank_buffer)].header));
    }
    complete(stage, action);
    poll(s);
    if (transfers_in(action)) poll(s - 1);
  }

  void complete(Stage& stage, const StageAction& action) {
    for_each_read(stage, action, [](Place& place) { --place.readers; });
    stage.done[static_cast<size_t>(action.step)] = action.micro_batch;
  }

  void take(Stage& stage, const StageAction& action) {
    Channel& from = incoming(stage, action);
    const Message message = std::move(from.queue.front());
    from.queue.pop_front();
    Place& place = *written(stage, action);
    place.rows = message.rows;
    place.header = message.header;
    if (action.step == StageStep::receive_proxy) check_header(header(stage, action), decode_header(message.header));
    Stage& sender = stages_[static_cast<size_t>(stage.config.stage - 1)];
    if (!message.sent) sent(sender, message.action);
    settle(sender, from);
  }

  void post(size_t s, size_t lane) {
    Stage& stage = stages_[s];
    const StageAction& action = stage.lanes[lane].queue.front();
    const bool proxy = action.step == StageStep::send_proxy;
    const StageHeader head = header(stage, action);
    const int64_t values = body_values(head);
    Message message;
    message.header = encode_header(head);
    message.bytes = kStageHeaderBytes + values;
    message.action = action;
    if (head.rows > 0) message.rows = payload(stage, action);
    (proxy ? outcome_.proxy_values : outcome_.bank_values)[s] += values;
    ++(proxy ? outcome_.proxies : outcome_.banks)[s];
    stage.lanes[lane].state = LaneState::State::sending;
    Channel& to = channel(stage.config.stage, proxy);
    const bool at_fault = stage.config.stage == odd_stage_ - 1 && action.micro_batch == odd_tick_;
    if (at_fault && scenario_.fault == (proxy ? Fault::lose_proxy : Fault::lose_bank)) {
      sent(stage, action);
    } else {
      if (at_fault && !proxy && scenario_.fault == Fault::double_bank) {
        to.queue.push_back(message);
        to.queue.back().sent = true;
      }
      to.queue.push_back(std::move(message));
      if (proxy && scenario_.posted_proxy) release_lane(stage, StageStep::send_proxy);
      settle(stage, to);
    }
    poll(s + 1);
  }

  // Marks what fits into the channel as sent.
  void settle(Stage& sender, Channel& to) {
    int64_t bytes = 0;
    for (Message& message : to.queue) {
      bytes += message.bytes;
      if (bytes > scenario_.capacity) break;
      if (!message.sent) sent(sender, message.action);
      message.sent = true;
    }
  }
  void sent(Stage& sender, const StageAction& action) {
    const StageAction copy = action;
    release_lane(sender, copy.step);
    complete(sender, copy);
  }
  // The lane whose head is the send goes on; with posted sends it did so before.
  void release_lane(Stage& stage, StageStep step) {
    for (LaneState& lane : stage.lanes) {
      if (lane.state == LaneState::State::sending && lane.queue.front().step == step) {
        lane.queue.pop_front();
        lane.state = LaneState::State::idle;
      }
    }
  }

  // Inherited rows in row order: those by BANK, then those by PROXY (whose first word is the hidden row).
  RowIds inherited(const Stage& stage, const StageAction& action) const {
    RowIds rows;
    const int64_t early = stage.config.eager_in ? stage.config.bank_rows_early : 0;
    if (early > 0) rows = stage.bank[static_cast<size_t>(action.bank_buffer)].rows;
    const RowIds& in = stage.in[static_cast<size_t>(action.slot)].rows;
    for (int64_t i = early; i < stage.config.bank_rows_in; ++i) rows.add(in.id[static_cast<size_t>(1 + i - early)]);
    return rows;
  }

  RowIds payload(const Stage& stage, const StageAction& action) const {
    RowIds rows;
    const RowIds& out = stage.out[static_cast<size_t>(action.slot)].rows;
    if (action.step == StageStep::send_proxy) rows.add(out.id[0]);
    const bool all = action.bank_first + action.bank_rows > stage.config.bank_rows_in;
    RowIds bank;
    if (action.bank_first < stage.config.bank_rows_in) bank = inherited(stage, action);
    bank.count = stage.config.bank_rows_in;
    for (int64_t i = 1; all && i < out.count; ++i) bank.add(out.id[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < action.bank_rows; ++i) rows.add(bank.id[static_cast<size_t>(action.bank_first + i)]);
    return rows;
  }

  void compute(Stage& stage, const StageAction& action) {
    const int64_t m = action.micro_batch, s = stage.config.stage;
    const RowIds bank = inherited(stage, action);
    if (bank.count != stage.config.bank_rows_in) broken(stage, action, fmt::format("sees {} bank rows", bank.count));
    for (int64_t i = 0; i < bank.count; ++i) {
      if (bank.id[static_cast<size_t>(i)] != bank_id(m, i))
        broken(stage, action, fmt::format("sees a wrong row {}", i));
    }
    if (s > 0 && stage.in[static_cast<size_t>(action.slot)].rows.id[0] != hidden_id(m, s - 1)) {
      broken(stage, action, "sees wrong hidden rows");
    }
    RowIds& out = stage.out[static_cast<size_t>(action.slot)].rows;
    out.count = 0;
    out.add(hidden_id(m, s));
    for (int64_t i = stage.config.bank_rows_in; i < stage.config.bank_rows_out; ++i) out.add(bank_id(m, i));
    ++outcome_.forwards;
  }

  [[noreturn]] static void broken(const Stage& stage, const StageAction& action, const std::string& what) {
    throw Broken{fmt::format("stage {}, micro-batch {}: {} {}", stage.config.stage, action.micro_batch,
                             stage_step_name(action.step), what)};
  }

  // Empty if all is done and nothing is left over.
  std::string stuck() const {
    std::string text;
    for (const Stage& stage : stages_) {
      for (size_t lane = 0; lane < 2; ++lane) {
        const auto& queue = stage.lanes[lane].queue;
        if (queue.empty()) continue;
        text += fmt::format("stage {} {} lane: {} {}\n", stage.config.stage, lane == 0 ? "main" : "side",
                            stage_step_name(queue.front().step), queue.front().micro_batch);
      }
      if (text.empty() && stage.order.micro_batch() != scenario_.ticks) text = "ticks left";
    }
    for (const auto& edge : channels_) {
      for (const Channel& each : edge) {
        if (text.empty() && !each.queue.empty()) text = "messages left";
      }
    }
    return text;
  }

  int64_t random() { return static_cast<int64_t>(mix64(scenario_.seed ^ (++random_count_ << 20)) >> 40); }

  using Event = std::tuple<int64_t, int64_t, size_t, size_t>;  // time, number, stage, lane
  Scenario scenario_;
  std::vector<Stage> stages_;
  std::vector<std::array<Channel, 2>> channels_;  // by edge: BANK, PROXY
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t event_number_ = 0;
  uint64_t random_count_ = 0;
  std::vector<int64_t> rows_;  // by micro-batch
  int64_t odd_stage_ = 0;      // where the fault is
  int64_t odd_tick_ = 60;      // and when: with a batch, late enough for all slots to be in use
  Outcome outcome_;
};

}  // namespace trireme::engine::simulated
