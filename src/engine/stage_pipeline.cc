#include "engine/stage_pipeline.h"

#include <array>
#include <map>
#include <memory>
#include <utility>

#include "comm/stream.h"
#include "comm/wire.h"

namespace trireme::engine {
namespace {

// Header and body travel one after the other under these tags: who prefetches does not know the size of the body.
constexpr int kHeaderTag = 1;
constexpr int kBodyTag = 2;

}  // namespace

// The state of one call of run().
struct StagePipeline::Run : std::enable_shared_from_this<StagePipeline::Run> {
  Run(StagePipeline& the_pipeline, std::span<const MicroBatch> the_batches, const Forward& the_forward)
      : pipeline(the_pipeline),
        batches(the_batches.begin(), the_batches.end()),
        forward(the_forward),
        order(pipeline.config_),
        in(static_cast<size_t>(pipeline.config_.slots)),
        out(in.size()) {}

  void tick(size_t index) {
    const MicroBatch& batch = batches[index];
    const StageConfig& config = pipeline.config_;
    model::StageStream& before = in[static_cast<size_t>(slot_of(static_cast<int64_t>(index), config.slots))];
    before.prefix = Matrix(batch.rows, pipeline.columns_);
    before.bank.assign(static_cast<size_t>(config.bank_rows_in), Matrix(batch.rows, pipeline.columns_));
    for (const StageAction& action : order.next(batch.rows == 0, index + 1 == batches.size())) {
      if (action.lane == Lane::side) {
        ended[{action.step, action.micro_batch}] =
            pipeline.side_.run([self = shared_from_this(), action] { self->perform(action); });
        continue;
      }
      for (const StageAction::Need& need : action.needs) wait(need);
      perform(action);
    }
    // Without rows of its own the rank still takes part in what its stage does together.
    if (batch.rows == 0) forward(index, config.stage > 0 ? &before : nullptr);
  }

  void wait(const StageAction::Need& need) {
    const auto found = ended.find({need.step, need.micro_batch});
    if (found == ended.end()) return;  // of this lane: it ended before
    found->second.wait();
    ended.erase(found);
  }

  void finish() {
    for (const auto& [key, event] : ended) event.wait();
  }

  void perform(const StageAction& action) {
    const auto slot = static_cast<size_t>(action.slot);
    switch (action.step) {
      case StageStep::wait_sends:
        return;  // its needs were waited for
      case StageStep::prefetch_bank:
        fetch(*pipeline.bank_, raw[static_cast<size_t>(action.bank_buffer)]);
        return;
      case StageStep::receive_bank: {
        Message& message = raw[static_cast<size_t>(action.bank_buffer)];
        if (!action.prefetched) fetch(*pipeline.bank_, message);
        unpack(action, message, {});
        return;
      }
      case StageStep::receive_proxy: {
        Message message;
        fetch(*pipeline.proxy_, message);
        unpack(action, message, in[slot].prefix.view());
        return;
      }
      case StageStep::forward:
        out[slot] =
            forward(static_cast<size_t>(action.micro_batch), pipeline.config_.stage > 0 ? &in[slot] : nullptr).stream;
        return;
      case StageStep::send_bank:
        send(action, *pipeline.bank_, {}, in[slot].bank);
        return;
      case StageStep::send_proxy:
        send(action, *pipeline.proxy_, out[slot].prefix.view(), out[slot].bank);
        return;
    }
  }

  struct Message {
    StageHeader header;
    std::vector<std::byte> body;
  };

  StageHeader header_of(const StageAction& action) const {
    const MicroBatch& batch = batches[static_cast<size_t>(action.micro_batch)];
    return message_header(action, pipeline.config_, batch.rows == 0 ? 0 : batch.digest, batch.rows, pipeline.columns_);
  }

  void fetch(comm::Communicator& edge, Message& message) const {
    const int from = static_cast<int>(pipeline.config_.stage) - 1;
    StageHeaderBytes bytes;
    edge.receive(from, kHeaderTag, bytes);
    message.header = decode_header(bytes);
    message.body.resize(static_cast<size_t>(body_values(message.header) * comm::element_bytes(pipeline.wire_)));
    if (!message.body.empty()) edge.receive(from, kBodyTag, message.body);
  }

  // Checks a message and takes its bank rows, and for a proxy the hidden rows before them.
  void unpack(const StageAction& action, const Message& message, Rows hidden) {
    check_header(header_of(action), message.header);
    const std::byte* from = message.body.data();
    const auto take = [&](Rows rows) {
      comm::unpack(from, rows, pipeline.wire_);
      from += comm::wire_bytes(rows, pipeline.wire_);
    };
    if (action.step == StageStep::receive_proxy) take(hidden);
    model::StageStream& before = in[static_cast<size_t>(action.slot)];
    for (int64_t i = 0; i < action.bank_rows; ++i) take(before.bank[static_cast<size_t>(action.bank_first + i)].view());
  }

  void send(const StageAction& action, comm::Communicator& edge, ConstRows hidden,
            const std::vector<Matrix>& bank) const {
    const int to = static_cast<int>(pipeline.config_.stage) + 1;
    const StageHeader header = header_of(action);
    std::vector<std::byte> body(static_cast<size_t>(body_values(header) * comm::element_bytes(pipeline.wire_)));
    std::byte* at = body.data();
    const auto put = [&](ConstRows rows) {
      comm::pack(rows, pipeline.wire_, at);
      at += comm::wire_bytes(rows, pipeline.wire_);
    };
    if (action.step == StageStep::send_proxy) put(hidden);
    for (int64_t i = 0; i < action.bank_rows; ++i) put(bank[static_cast<size_t>(action.bank_first + i)].view());
    edge.send(to, kHeaderTag, encode_header(header));
    if (!body.empty()) edge.send(to, kBodyTag, body);
  }

  StagePipeline& pipeline;
  const std::vector<MicroBatch> batches;
  const Forward& forward;  // of the main lane
  StageOrder order;
  std::vector<model::StageStream> in, out;                     // by slot
  std::array<Message, kBankBuffers> raw;                       // BANK messages as received
  std::map<std::pair<StageStep, int64_t>, comm::Event> ended;  // of the side lane
};

StagePipeline::StagePipeline(const StageConfig& config, int64_t columns, comm::Wire wire, comm::Communicator* proxy,
                             comm::Communicator* bank)
    : config_(config), columns_(columns), wire_(wire), proxy_(proxy), bank_(bank) {}

void StagePipeline::run(std::span<const MicroBatch> micro_batches, const Forward& forward) {
  const auto run = std::make_shared<Run>(*this, micro_batches, forward);
  for (size_t i = 0; i < micro_batches.size(); ++i) run->tick(i);
  run->finish();
}

}  // namespace trireme::engine
