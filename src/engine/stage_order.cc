#include "engine/stage_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace trireme::engine {
namespace {

void require(bool holds, const StageConfig& config, std::string_view what) {
  if (!holds) throw BadInput(fmt::format("pipeline stage {} of {}: {}", config.stage, config.stages, what));
}

}  // namespace

std::string_view stage_step_name(StageStep step) {
  static constexpr std::array<std::string_view, kStageSteps> kNames = {
      "wait for sends", "receive BANK", "prefetch BANK", "receive PROXY", "forward", "send BANK", "send PROXY"};
  return kNames[static_cast<size_t>(step)];
}

StageConfig stage_config(std::span<const int64_t> rows_written, const layout::EagerBank& eager, int64_t depth,
                         int64_t stage) {
  const auto stages = static_cast<int64_t>(rows_written.size());
  if (stage < 0 || stage >= stages) throw BadInput(fmt::format("pipeline stage {}: there are {}", stage, stages));
  for (const int64_t sender : eager.stages) {
    if (eager.enabled && (sender < 0 || sender >= stages - 1)) {
      throw BadInput(fmt::format("eager bank: stage {} sends to no stage; stages 0 to {} do", sender, stages - 2));
    }
  }
  const auto rows_before = [&](int64_t s) {
    int64_t rows = 0;
    for (int64_t i = 0; i < s; ++i) rows += rows_written[static_cast<size_t>(i)];
    return rows;
  };
  const auto sends_bank = [&](int64_t sender) {
    if (!eager.enabled || sender < 0 || sender >= stages - 1) return false;
    if (eager.stages.empty()) return rows_before(sender) > 0;
    return std::find(eager.stages.begin(), eager.stages.end(), sender) != eager.stages.end();
  };
  StageConfig config;
  config.stage = stage;
  config.stages = stages;
  config.slots = pipeline_slots(stages, depth);
  config.bank_rows_early = rows_before(std::max<int64_t>(stage - 1, 0));
  config.bank_rows_in = rows_before(stage);
  config.bank_rows_out = rows_before(stage + 1);
  config.eager_in = sends_bank(stage - 1);
  config.eager_out = sends_bank(stage);
  config.prefetch = config.eager_in && eager.prefetch;
  return config;
}

StageOrder::StageOrder(const StageConfig& config)
    : config_(config), empty_(static_cast<size_t>(std::max(config.slots, kBankBuffers)), 1) {
  require(config.stages >= 1 && config.stage >= 0 && config.stage < config.stages, config, "no such stage");
  require(config.slots >= config.stages, config,
          fmt::format("{} micro-batch slots, it needs one a stage", config.slots));
  require(config.bank_rows_early >= 0 && config.bank_rows_early <= config.bank_rows_in &&
              config.bank_rows_in <= config.bank_rows_out,
          config,
          fmt::format("bank rows {} early, {} in, {} out: they must not fall", config.bank_rows_early,
                      config.bank_rows_in, config.bank_rows_out));
  require(config.stage > 0 || (config.bank_rows_in == 0 && !config.eager_in), config,
          "the first stage inherits no bank rows");
  require(!last_stage() || !config.eager_out, config, "the last stage sends no BANK");
  require(!config.prefetch || config.eager_in, config, "only BANK messages are prefetched and none arrive");
}

std::vector<StageAction> StageOrder::next(bool empty, bool last) {
  if (ended_) throw Failure(fmt::format("pipeline stage {}: a tick after the last one", config_.stage));
  std::vector<StageAction> out;
  add_wait_sends(out, next_);
  add_bank_in(out, empty);
  // Rows that came with BANK alone go on before anything else; others need this tick's PROXY first.
  const bool bank_out_first = empty || rows_by_proxy() == 0;
  if (bank_out_first) add_bank_out(out, empty);
  const bool prefetch = config_.prefetch && !last;
  if (prefetch && bank_out_first) add_prefetch(out);
  if (!empty) add_proxy_and_forward(out);
  if (!bank_out_first) {
    // Right after the receive that they wait for.
    std::vector<StageAction> side;
    add_bank_out(side, empty);
    if (prefetch) add_prefetch(side);
    const auto received =
        std::find_if(out.begin(), out.end(), [](const StageAction& a) { return a.step == StageStep::receive_proxy; });
    out.insert(received + 1, side.begin(), side.end());
  }
  empty_[static_cast<size_t>(next_) % empty_.size()] = empty ? 1 : 0;
  next_prefetched_ = prefetch;
  if (!empty) ++proxies_;
  ++next_;
  ended_ = last;
  return out;
}

StageAction StageOrder::make(StageStep step, Lane lane, int64_t micro_batch) const {
  StageAction action;
  action.step = step;
  action.lane = lane;
  action.micro_batch = micro_batch;
  action.slot = slot_of(micro_batch, config_.slots);
  if (config_.eager_in && step != StageStep::wait_sends && step != StageStep::receive_proxy) {
    action.bank_buffer = micro_batch % kBankBuffers;
  }
  return action;
}

bool StageOrder::was_empty(int64_t micro_batch) const {
  return empty_[static_cast<size_t>(micro_batch) % empty_.size()] != 0;
}

void StageOrder::add_wait_sends(std::vector<StageAction>& out, int64_t micro_batch) const {
  const int64_t before = micro_batch - config_.slots;
  if (before < 0 || last_stage()) return;
  StageAction action = make(StageStep::wait_sends, Lane::main, micro_batch);
  if (config_.eager_out) action.needs.push_back({StageStep::send_bank, before});
  if (!was_empty(before)) action.needs.push_back({StageStep::send_proxy, before});
  if (!action.needs.empty()) out.push_back(std::move(action));
}

// The buffer was last used by the micro-batch kBankBuffers earlier: its forward and its send onward read it.
void StageOrder::need_free_bank_buffer(StageAction& action) const {
  const int64_t before = action.micro_batch - kBankBuffers;
  if (before < 0) return;
  const bool ran = !was_empty(before);
  if (ran) action.needs.push_back({StageStep::forward, before});
  if (last_stage()) return;
  if (config_.eager_out) action.needs.push_back({StageStep::send_bank, before});
  if (!config_.eager_out && ran) action.needs.push_back({StageStep::send_proxy, before});
}

void StageOrder::add_bank_in(std::vector<StageAction>& out, bool empty) {
  if (!config_.eager_in) return;
  StageAction action = make(StageStep::receive_bank, Lane::side, next_);
  action.seq = next_;
  action.bank_rows = empty ? 0 : config_.bank_rows_early;
  action.prefetched = next_prefetched_;
  if (next_prefetched_) {
    action.needs.push_back({StageStep::prefetch_bank, next_});
  } else {
    need_free_bank_buffer(action);
  }
  out.push_back(std::move(action));
}

void StageOrder::add_prefetch(std::vector<StageAction>& out) const {
  StageAction action = make(StageStep::prefetch_bank, Lane::side, next_ + 1);
  action.seq = next_ + 1;
  action.bank_rows = config_.bank_rows_early;  // if the micro-batch will not be empty
  need_free_bank_buffer(action);
  out.push_back(std::move(action));
}

void StageOrder::add_bank_out(std::vector<StageAction>& out, bool empty) const {
  if (!config_.eager_out) return;
  StageAction action = make(StageStep::send_bank, Lane::side, next_);
  action.seq = next_;
  action.bank_rows = empty ? 0 : config_.bank_rows_in;
  if (config_.eager_in) action.needs.push_back({StageStep::receive_bank, next_});
  if (action.bank_rows > 0 && rows_by_proxy() > 0) action.needs.push_back({StageStep::receive_proxy, next_});
  out.push_back(std::move(action));
}

void StageOrder::add_proxy_and_forward(std::vector<StageAction>& out) {
  StageAction forward = make(StageStep::forward, Lane::main, next_);
  if (config_.eager_in) forward.needs.push_back({StageStep::receive_bank, next_});
  if (config_.stage > 0) {
    StageAction receive = make(StageStep::receive_proxy, Lane::main, next_);
    receive.seq = proxies_;
    receive.bank_rows = rows_by_proxy();
    receive.bank_first = config_.bank_rows_in - receive.bank_rows;
    out.push_back(std::move(receive));
    forward.needs.push_back({StageStep::receive_proxy, next_});
  }
  out.push_back(std::move(forward));
  if (last_stage()) return;
  StageAction send = make(StageStep::send_proxy, Lane::main, next_);
  send.seq = proxies_;
  send.bank_first = config_.eager_out ? config_.bank_rows_in : 0;
  send.bank_rows = config_.bank_rows_out - send.bank_first;
  send.needs.push_back({StageStep::forward, next_});
  out.push_back(std::move(send));
}

StageHeader message_header(const StageAction& action, const StageConfig& config, uint64_t digest, int64_t rows,
                           int64_t columns) {
  const StageStep step = action.step;
  const bool bank = step == StageStep::receive_bank || step == StageStep::send_bank;
  const bool sends = step == StageStep::send_bank || step == StageStep::send_proxy;
  if (!bank && !sends && step != StageStep::receive_proxy) {
    throw Failure(fmt::format("pipeline stage {}: {} has no message header", config.stage, stage_step_name(step)));
  }
  StageHeader header;
  header.kind = bank ? MessageKind::bank : MessageKind::proxy;
  header.from = sends ? config.stage : config.stage - 1;
  header.seq = action.seq;
  header.micro_batch = action.micro_batch;
  header.slot = action.slot;
  header.digest = digest;
  header.rows = rows;
  header.bank_rows = action.bank_rows;
  header.columns = columns;
  return header;
}

}  // namespace trireme::engine
