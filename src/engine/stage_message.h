// The header in front of every message between neighbouring stages of a pipeline. It says which message of the edge
// this is and for which batch, so that a lost, doubled or swapped message, or two stages that built different batches,
// end in an error before a row is used. A pair that goes by order alone would take the wrong rows in silence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::engine {

// bank: rows of the residual bank that the sender inherited. proxy: its hidden rows and the rest of the bank.
enum class MessageKind : uint16_t { bank = 1, proxy = 2 };
std::string_view message_kind_name(MessageKind kind);

struct StageHeader {
  MessageKind kind = MessageKind::bank;
  int64_t from = 0;         // sending stage; the edge is from -> from + 1
  int64_t seq = 0;          // messages of this kind on this edge before this one
  int64_t micro_batch = 0;  // counted from 0, the same number on all stages
  int64_t slot = 0;         // of the micro-batch
  uint64_t digest = 0;      // batch_digest of the micro-batch; 0: it is empty
  int64_t rows = 0;         // token rows of the micro-batch
  int64_t bank_rows = 0;    // bank rows of each token in this message
  int64_t columns = 0;      // of a row
  bool operator==(const StageHeader&) const = default;
};

// The largest values on the wire, so that the product of any three is a sane size.
inline constexpr int64_t kMaxMessageRows = int64_t{1} << 24;
inline constexpr int64_t kMaxMessageBankRows = int64_t{1} << 12;
inline constexpr int64_t kMaxMessageColumns = int64_t{1} << 20;

// magic u32 | version u16 | kind u16 | from u32 | slot u32 | seq u64 | micro_batch u64 | digest u64 | rows u32 |
// bank_rows u32 | columns u32 | zero u32, little endian.
inline constexpr int64_t kStageHeaderBytes = 56;
using StageHeaderBytes = std::array<std::byte, kStageHeaderBytes>;

// Throws Failure for a field that is negative or too large for its place.
StageHeaderBytes encode_header(const StageHeader& header);
// Throws Failure, and never anything else, for bytes that encode_header does not make. The sizes are within the limits
// above, not within any buffer: compare before the body is received.
StageHeader decode_header(std::span<const std::byte> bytes);

// Values that follow the header: rows * columns * bank_rows, and rows * columns more for the hidden rows of a proxy.
int64_t body_values(const StageHeader& header);

// Throws Failure that names the edge, the kind and both values of the first field that differs.
void check_header(const StageHeader& expected, const StageHeader& got);

// A hash of what defines a batch, in its order: for each segment its rows, position, slot, dp index and so on. 0 for
// nothing and never 0 otherwise.
uint64_t batch_digest(std::span<const int64_t> fields);

}  // namespace trireme::engine
