// In which order one stage of a prefill pipeline receives, computes and sends. A pure state machine: it is told whether
// the next micro-batch is empty and answers with the actions of that tick; no clock, thread or socket. All stages build
// the same micro-batches in the same order, so every stage knows what its neighbours send.
//
// An edge carries hidden rows and all bank rows written so far, as one PROXY message for each micro-batch that is not
// empty. On an eager edge the bank rows that the sender only passes on travel ahead as a BANK message, one for every
// micro-batch, empty if there is nothing to carry: the numbers of both ends cannot drift apart. Bytes are the same.
//
// Two lanes, each in list order: main computes and moves PROXY, side moves BANK. On an edge the sender's order is BANK,
// PROXY and the receiver takes BANK no later than PROXY; a receiver that takes PROXY first waits for ever on a bounded
// transport, for the sender waits in BANK. One lane for both is enough as long as nothing is prefetched.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/stage_message.h"
#include "layout/instance.h"

namespace trireme::engine {

// Tick arithmetic. Micro-batches count from 0; a tick is one turn of a stage's loop; depth is Instance::async_depth.
constexpr int64_t pipeline_slots(int64_t stages, int64_t depth) { return stages + depth; }
constexpr int64_t slot_of(int64_t micro_batch, int64_t slots) { return micro_batch % slots; }
constexpr int64_t run_tick(int64_t stage, int64_t micro_batch) { return micro_batch + stage; }
// The tick at which stage 0 holds the output of the micro-batch, the last before its slot is used again.
constexpr int64_t output_tick(int64_t micro_batch, int64_t stages, int64_t depth) {
  return micro_batch + stages - 1 + depth;
}
// Ticks from a stage's run of a micro-batch until its end is processed there: the output is relayed, or (early last
// chunk, stages after the first) the next tick does it.
constexpr int64_t relay_ticks(int64_t stages, int64_t depth) { return stages - 1 + depth; }
constexpr int64_t early_last_chunk_ticks() { return 1; }

// Ticks after all stages became ready: until stage 0 knows, until `stage` acts, until all have acted.
struct Hops {
  int64_t known = 0;
  int64_t acts = 0;
  int64_t all = 0;
  bool operator==(const Hops&) const = default;
};
// One turn of the ring collects, a second one tells: admission and release.
constexpr Hops ring_hops(int64_t stages, int64_t stage) { return {stages, stages + stage, 2 * stages - 1}; }
// Each stage tells stage 0 directly; the answer travels with the requests.
constexpr Hops side_band_hops(int64_t stages, int64_t stage) { return {0, stage, stages - 1}; }

// Buffers for received BANK rows: one is read while the next message arrives.
inline constexpr int64_t kBankBuffers = 2;

struct StageConfig {
  int64_t stage = 0;
  int64_t stages = 1;
  int64_t slots = 1;            // pipeline_slots
  int64_t bank_rows_early = 0;  // of bank_rows_in: those that the stage before inherited itself
  int64_t bank_rows_in = 0;     // bank rows in front of this stage
  int64_t bank_rows_out = 0;    // bank_rows_in and the rows this stage writes; not sent by the last stage
  bool eager_in = false;        // the edge from the stage before has BANK messages
  bool eager_out = false;       // the edge to the next stage has
  bool prefetch = false;        // with eager_in: the next BANK is received during the forward
};

// The stage's part of a pipeline in which stage i writes rows_written[i] bank rows. Eager edges leave the stages that
// are named, or if none is, all but the last that inherit rows. Throws BadInput for a named stage without an edge out.
StageConfig stage_config(std::span<const int64_t> rows_written, const layout::EagerBank& eager, int64_t depth,
                         int64_t stage);

enum class StageStep : uint8_t {
  wait_sends,     // until all sends of the slot's previous micro-batch ended: its buffers are free after this
  receive_bank,   // receive BANK and check its header; with `prefetched` the bytes are here already, check only
  prefetch_bank,  // receive the next micro-batch's BANK; its batch is not known yet, so nothing is checked
  receive_proxy,  // receive PROXY and check its header
  forward,
  send_bank,
  send_proxy,
};
inline constexpr int kStageSteps = 7;
std::string_view stage_step_name(StageStep step);

enum class Lane : uint8_t { main, side };

struct StageAction {
  // Something that must have ended before this action starts; it is earlier in the lists, perhaps on the other lane.
  // A send has ended when its data may be written again.
  struct Need {
    StageStep step = StageStep::forward;
    int64_t micro_batch = 0;
    bool operator==(const Need&) const = default;
  };

  StageStep step = StageStep::forward;
  Lane lane = Lane::main;
  int64_t micro_batch = 0;
  int64_t slot = 0;           // of the micro-batch: hidden rows, rows by PROXY and written rows are kept by slot
  int64_t seq = -1;           // of the message
  int64_t bank_first = 0;     // the message's bank rows are [bank_first, bank_first + bank_rows) of the bank
  int64_t bank_rows = 0;      // 0 in the BANK of an empty micro-batch
  int64_t bank_buffer = -1;   // with eager_in: the buffer that holds (or gets) the micro-batch's BANK rows
  bool prefetched = false;    // receive_bank
  std::vector<Need> needs{};  // of any lane, those that list order implies included
};

class StageOrder {
 public:
  // Throws BadInput for a config that contradicts itself.
  explicit StageOrder(const StageConfig& config);

  const StageConfig& config() const { return config_; }
  int64_t micro_batch() const { return next_; }  // of the next call

  // The actions of the next tick in the order of issue. `last`: no micro-batch follows, nothing is prefetched for one;
  // a later call throws Failure.
  std::vector<StageAction> next(bool empty, bool last = false);

 private:
  StageAction make(StageStep step, Lane lane, int64_t micro_batch) const;
  void add_wait_sends(std::vector<StageAction>& out, int64_t micro_batch) const;
  void add_bank_in(std::vector<StageAction>& out, bool empty);
  void add_prefetch(std::vector<StageAction>& out) const;
  void add_bank_out(std::vector<StageAction>& out, bool empty) const;
  void add_proxy_and_forward(std::vector<StageAction>& out);
  void need_free_bank_buffer(StageAction& action) const;
  bool was_empty(int64_t micro_batch) const;
  bool last_stage() const { return config_.stage + 1 == config_.stages; }
  // Inherited rows that come with PROXY.
  int64_t rows_by_proxy() const { return config_.bank_rows_in - (config_.eager_in ? config_.bank_rows_early : 0); }

  StageConfig config_;
  int64_t next_ = 0;
  int64_t proxies_ = 0;  // micro-batches before that were not empty: the number of PROXY messages on both edges
  bool ended_ = false;
  bool next_prefetched_ = false;
  std::vector<char> empty_;  // of the newest micro-batches, by number modulo its size
};

// The header of a message that the action sends or must get. `rows` and `digest` are those of the micro-batch, 0 for an
// empty one. Throws Failure for an action that knows no header.
StageHeader message_header(const StageAction& action, const StageConfig& config, uint64_t digest, int64_t rows,
                           int64_t columns);

}  // namespace trireme::engine
