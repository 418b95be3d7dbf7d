#include "engine/stage_message.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::engine {
namespace {

constexpr uint64_t kMagic = 0x47545354;  // "TSTG"
constexpr uint64_t kVersion = 1;
constexpr int64_t kMaxSmall = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();

class Writer {
 public:
  void put(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_[at_++] = static_cast<std::byte>(value >> (8 * i));
  }
  void put(int64_t value, int bytes, std::string_view field, int64_t limit) {
    if (value < 0 || value > limit) {
      throw Failure(fmt::format("stage message: {} is {}, it must be 0 to {}", field, value, limit));
    }
    put(static_cast<uint64_t>(value), bytes);
  }
  const StageHeaderBytes& bytes() const { return out_; }

 private:
  StageHeaderBytes out_{};
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t take(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(bytes_[at_++]) << (8 * i);
    return value;
  }
  int64_t take(int bytes, std::string_view field, int64_t limit) {
    const uint64_t value = take(bytes);
    if (value > static_cast<uint64_t>(limit)) {
      throw Failure(fmt::format("stage message: {} is {}, it must be 0 to {}", field, value, limit));
    }
    return static_cast<int64_t>(value);
  }
  void expect(int bytes, std::string_view field, uint64_t wanted) {
    const uint64_t value = take(bytes);
    if (value != wanted)
      throw Failure(fmt::format("stage message: {} is {:#x}, it must be {:#x}", field, value, wanted));
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace

std::string_view message_kind_name(MessageKind kind) { return kind == MessageKind::bank ? "BANK" : "PROXY"; }

StageHeaderBytes encode_header(const StageHeader& header) {
  Writer out;
  out.put(kMagic, 4);
  out.put(kVersion, 2);
  out.put(static_cast<uint64_t>(header.kind), 2);
  out.put(header.from, 4, "sending stage", kMaxSmall);
  out.put(header.slot, 4, "slot", kMaxSmall);
  out.put(header.seq, 8, "seq", kMaxCount);
  out.put(header.micro_batch, 8, "micro-batch", kMaxCount);
  out.put(header.digest, 8);
  out.put(header.rows, 4, "rows", kMaxMessageRows);
  out.put(header.bank_rows, 4, "bank rows", kMaxMessageBankRows);
  out.put(header.columns, 4, "columns", kMaxMessageColumns);
  out.put(0, 4);
  return out.bytes();
}

StageHeader decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kStageHeaderBytes) {
    throw Failure(fmt::format("stage message: a header of {} bytes, it must have {}", bytes.size(), kStageHeaderBytes));
  }
  Reader in(bytes);
  in.expect(4, "magic", kMagic);
  in.expect(2, "version", kVersion);
  StageHeader header;
  const uint64_t kind = in.take(2);
  if (kind != static_cast<uint64_t>(MessageKind::bank) && kind != static_cast<uint64_t>(MessageKind::proxy)) {
    throw Failure(fmt::format("stage message: kind is {}, it must be 1 (BANK) or 2 (PROXY)", kind));
  }
  header.kind = static_cast<MessageKind>(kind);
  header.from = in.take(4, "sending stage", kMaxSmall);
  header.slot = in.take(4, "slot", kMaxSmall);
  header.seq = in.take(8, "seq", kMaxCount);
  header.micro_batch = in.take(8, "micro-batch", kMaxCount);
  header.digest = in.take(8);
  header.rows = in.take(4, "rows", kMaxMessageRows);
  header.bank_rows = in.take(4, "bank rows", kMaxMessageBankRows);
  header.columns = in.take(4, "columns", kMaxMessageColumns);
  in.expect(4, "the last word", 0);
  return header;
}

int64_t body_values(const StageHeader& header) {
  const int64_t hidden = header.kind == MessageKind::proxy ? 1 : 0;
  return header.rows * header.columns * (header.bank_rows + hidden);
}

void check_header(const StageHeader& expected, const StageHeader& got) {
  const auto differs = [&](std::string_view field, const std::string& got_value, const std::string& expected_value) {
    throw Failure(fmt::format("stages {} -> {}, {} number {}: {} is {}, expected {}", expected.from, expected.from + 1,
                              message_kind_name(expected.kind), expected.seq, field, got_value, expected_value));
  };
  const auto compare = [&](std::string_view field, int64_t got_value, int64_t expected_value) {
    if (got_value != expected_value) differs(field, std::to_string(got_value), std::to_string(expected_value));
  };
  if (got.kind != expected.kind) {
    differs("kind", std::string(message_kind_name(got.kind)), std::string(message_kind_name(expected.kind)));
  }
  compare("sending stage", got.from, expected.from);
  compare("seq", got.seq, expected.seq);
  compare("micro-batch", got.micro_batch, expected.micro_batch);
  compare("slot", got.slot, expected.slot);
  // Before the sizes: where the batches differ, theirs differ only as a consequence.
  if (got.digest != expected.digest) {
    differs("batch digest", fmt::format("{:#018x}", got.digest), fmt::format("{:#018x}", expected.digest));
  }
  compare("rows", got.rows, expected.rows);
  compare("bank rows", got.bank_rows, expected.bank_rows);
  compare("columns", got.columns, expected.columns);
}

uint64_t batch_digest(std::span<const int64_t> fields) {
  if (fields.empty()) return 0;
  uint64_t hash = fields.size();
  for (const int64_t field : fields) hash = mix64(hash ^ static_cast<uint64_t>(field));
  return hash == 0 ? 1 : hash;
}

}  // namespace trireme::engine
