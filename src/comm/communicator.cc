#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"
#include "comm/wire.h"

namespace trireme::comm {
namespace {

// What a rank is about to do. All ranks of a group must agree.
struct Fingerprint {
  int64_t call = 0;
  int64_t operation = 0;
  int64_t rows = 0;
  int64_t cols = 0;  // elements of a row, or bytes
  int64_t detail = 0;
  bool operator==(const Fingerprint&) const = default;
};

// Fingerprint::detail: the root of a broadcast; else what moves.
constexpr int kBytes = -1;
constexpr int kUnevenBytes = -2;
int detail_of(Wire wire) { return static_cast<int>(wire); }

std::string in_words(const Fingerprint& print) {
  const auto operation = static_cast<Operation>(print.operation);
  std::string what;
  if (operation == Operation::broadcast) {
    what = fmt::format(" of {} bytes from rank {}", print.cols, print.detail);
  } else if (print.detail == kUnevenBytes) {
    what = " of blocks of any size";
  } else if (print.detail == kBytes) {
    what = operation == Operation::barrier ? "" : fmt::format(" of {} bytes", print.cols);
  } else {
    what = fmt::format(" of {} x {} floats as {}", print.rows, print.cols,
                       print.detail == detail_of(Wire::bf16) ? "bf16" : "f32");
  }
  return fmt::format("{}{} (its call {})", operation_name(operation), what, print.call);
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  const std::less<> before;
  return a_bytes > 0 && b_bytes > 0 && before(x, y + b_bytes) && before(y, x + a_bytes);
}

// The memory that rows reach over, gaps between them included.
size_t extent(ConstRows rows) {
  if (rows.rows == 0 || rows.cols == 0) return 0;
  return static_cast<size_t>((rows.rows - 1) * rows.stride + rows.cols) * sizeof(float);
}

bool overlap(ConstRows a, ConstRows b) { return overlap(a.data, extent(a), b.data, extent(b)); }

// Sum of all counts, or -1 if one is negative.
int64_t total(std::span<const int64_t> counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0) return -1;
    sum += count;
  }
  return sum;
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

std::string_view operation_name(Operation operation) {
  constexpr std::array<std::string_view, kOperations> kNames = {
      "barrier", "broadcast", "all_gather", "all_to_all", "reduce_scatter", "send", "receive"};
  return kNames.at(static_cast<size_t>(operation));
}

Communicator::Communicator(std::string name, int rank, int size, bool checked)
    : name_(std::move(name)), rank_(rank), size_(size), checked_(checked) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw BadInput(fmt::format("group {}: rank is {} of {}; it must be from 0 to size - 1", name_, rank, size));
  }
}

Failure Communicator::failure(const std::string& what) const {
  return Failure(fmt::format("group {}: {}", name_, what));
}

BadInput Communicator::bad_input(Operation operation, const std::string& what) const {
  return BadInput(fmt::format("group {}, rank {}: {}: {}", name_, rank_, operation_name(operation), what));
}

void Communicator::check_rank(Operation operation, int rank) const {
  if (rank < 0 || rank >= size_) {
    throw bad_input(operation, fmt::format("rank {} is not in the group, whose ranks are 0 to {}", rank, size_ - 1));
  }
}

void Communicator::check_peer(Operation operation, int peer, int tag) const {
  check_rank(operation, peer);
  if (peer == rank_) throw bad_input(operation, "the peer is this rank itself; it must be another");
  if (tag < 0 || tag >= kTags) throw bad_input(operation, fmt::format("tag is {}; it must be 0 to {}", tag, kTags - 1));
}

void Communicator::check_rows(Operation operation, const char* what, ConstRows rows) const {
  if (rows.rows < 0 || rows.cols < 0 || rows.stride < rows.cols) {
    throw bad_input(operation,
                    fmt::format("{} is {} x {} with stride {}; none may be negative nor the stride below the "
                                "columns",
                                what, rows.rows, rows.cols, rows.stride));
  }
  if (rows.data == nullptr && rows.rows > 0 && rows.cols > 0) {
    throw bad_input(operation, fmt::format("{} is {} x {} without memory", what, rows.rows, rows.cols));
  }
}

void Communicator::count(Operation operation, int64_t bytes) {
  Traffic::Count& counted = traffic_[operation];
  ++counted.calls;
  counted.bytes += bytes;
}

std::span<std::byte> Communicator::scratch(size_t which, int64_t bytes) {
  std::vector<std::byte>& memory = scratch_.at(which);
  if (memory.size() < static_cast<size_t>(bytes)) memory.resize(static_cast<size_t>(bytes));
  return {memory.data(), static_cast<size_t>(bytes)};
}

std::span<const std::byte> Communicator::packed(ConstRows rows, Wire wire, bool in_place) {
  if (in_place && travels_in_place(rows, wire))
    return std::as_bytes(std::span(rows.data, extent(rows) / sizeof(float)));
  const std::span<std::byte> memory = scratch(0, wire_bytes(rows, wire));
  pack(rows, wire, memory.data());
  return memory;
}

void Communicator::announce(Operation operation, int64_t rows, int64_t cols, int detail) {
  ++calls_;
  if (!checked_ || size_ == 1) return;
  const Fingerprint mine{calls_, static_cast<int64_t>(operation), rows, cols, detail};
  std::vector<Fingerprint> all(static_cast<size_t>(size_));
  do_all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const auto other = std::find_if(all.begin(), all.end(), [&](const Fingerprint& print) { return print != all[0]; });
  if (other == all.end()) return;
  throw failure(fmt::format("rank {} calls {}, rank 0 calls {}; all ranks of a group must make the same calls",
                            other - all.begin(), in_words(*other), in_words(all[0])));
}

void Communicator::agree(std::string_view what, uint64_t value) {
  if (!checked_ || size_ == 1) return;
  std::vector<uint64_t> all(static_cast<size_t>(size_));
  do_all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
  const auto other = std::find_if(all.begin(), all.end(), [&](uint64_t v) { return v != all[0]; });
  if (other == all.end()) return;
  throw failure(fmt::format("rank {} has another {} than rank 0; all ranks of the group must have the same",
                            other - all.begin(), what));
}

void Communicator::check_blocks(std::span<const int64_t> send_bytes, std::span<const int64_t> receive_bytes) {
  if (!checked_ || size_ == 1) return;
  const auto ranks = static_cast<size_t>(size_);
  std::vector<int64_t> all(ranks * ranks);
  do_all_gather(std::as_bytes(send_bytes), std::as_writable_bytes(std::span(all)));
  for (size_t from = 0; from < ranks; ++from) {
    const int64_t sent = all[from * ranks + static_cast<size_t>(rank_)];
    if (sent == receive_bytes[from]) continue;
    throw failure(fmt::format("all_to_all: rank {} sends {} bytes to rank {}, which expects {}", from, sent, rank_,
                              receive_bytes[from]));
  }
}

void Communicator::warm_up() {
  if (size_ == 1) return;
  const auto ranks = static_cast<size_t>(size_);
  std::vector<std::byte> out(ranks);
  std::vector<std::byte> in(ranks);
  const std::vector<int64_t> ones(ranks, 1);
  do_barrier();
  do_broadcast(std::span(in).first(1), 0);
  do_all_gather(std::span(out).first(1), in);
  do_all_to_all(out, ones, in, ones);
  for (int step = 1; step < size_; ++step) {
    do_send((rank_ + step) % size_, 0, std::span(out).first(1));
    do_receive((rank_ - step + size_) % size_, 0, std::span(in).first(1));
  }
}

void Communicator::barrier() {
  announce(Operation::barrier, 0, 0, kBytes);
  count(Operation::barrier, 0);
  if (size_ > 1) do_barrier();
}

void Communicator::broadcast(std::span<std::byte> data, int root) {
  check_rank(Operation::broadcast, root);
  announce(Operation::broadcast, 1, std::ssize(data), root);
  count(Operation::broadcast, root == rank_ ? (size_ - 1) * std::ssize(data) : 0);
  if (size_ > 1) do_broadcast(data, root);
}

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  if (std::ssize(all) != size_ * std::ssize(mine)) {
    throw bad_input(Operation::all_gather, fmt::format("{} bytes from each of {} ranks go to {} bytes; they need {}",
                                                       mine.size(), size_, all.size(), size_ * std::ssize(mine)));
  }
  if (overlap(mine.data(), mine.size(), all.data(), all.size())) {
    throw bad_input(Operation::all_gather, "what is sent and what is received overlap; they must be apart");
  }
  announce(Operation::all_gather, 1, std::ssize(mine), kBytes);
  count(Operation::all_gather, (size_ - 1) * std::ssize(mine));
  if (size_ == 1) return copy_bytes(mine, all);
  do_all_gather(mine, all);
}

void Communicator::exchange(std::span<const std::byte> send, std::span<std::byte> receive) {
  if (size_ == 1) return copy_bytes(send, receive);
  const std::vector<int64_t> blocks(static_cast<size_t>(size_), std::ssize(send) / size_);
  do_all_to_all(send, blocks, receive, blocks);
}

void Communicator::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) {
  if (send.size() != receive.size() || std::ssize(send) % size_ != 0) {
    throw bad_input(Operation::all_to_all, fmt::format("{} bytes go out and {} come in; both must be the same multiple "
                                                       "of the {} ranks",
                                                       send.size(), receive.size(), size_));
  }
  if (overlap(send.data(), send.size(), receive.data(), receive.size())) {
    throw bad_input(Operation::all_to_all, "what is sent and what is received overlap; they must be apart");
  }
  announce(Operation::all_to_all, 1, std::ssize(send), kBytes);
  count(Operation::all_to_all, std::ssize(send) / size_ * (size_ - 1));
  exchange(send, receive);
}

void Communicator::all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                              std::span<std::byte> receive, std::span<const int64_t> receive_bytes) {
  constexpr Operation kHere = Operation::all_to_all;
  if (std::ssize(send_bytes) != size_ || std::ssize(receive_bytes) != size_) {
    throw bad_input(kHere,
                    fmt::format("sizes of {} blocks to send and of {} to receive are given; each must be one for "
                                "each of the {} ranks",
                                send_bytes.size(), receive_bytes.size(), size_));
  }
  const auto me = static_cast<size_t>(rank_);
  if (total(send_bytes) != std::ssize(send) || total(receive_bytes) != std::ssize(receive)) {
    throw bad_input(kHere,
                    fmt::format("the blocks to send are {} bytes in a span of {}, those to receive {} in {}; they "
                                "must fill the spans and none be negative",
                                total(send_bytes), send.size(), total(receive_bytes), receive.size()));
  }
  if (send_bytes[me] != receive_bytes[me]) {
    throw bad_input(
        kHere, fmt::format("this rank sends {} bytes to itself and expects {}", send_bytes[me], receive_bytes[me]));
  }
  if (overlap(send.data(), send.size(), receive.data(), receive.size())) {
    throw bad_input(kHere, "what is sent and what is received overlap; they must be apart");
  }
  announce(kHere, 0, 0, kUnevenBytes);
  check_blocks(send_bytes, receive_bytes);
  count(kHere, std::ssize(send) - send_bytes[me]);
  if (size_ == 1) return copy_bytes(send, receive);
  do_all_to_all(send, send_bytes, receive, receive_bytes);
}

void Communicator::all_gather(ConstRows mine, Rows all, Wire wire) {
  constexpr Operation kHere = Operation::all_gather;
  check_rows(kHere, "this rank's part", mine);
  check_rows(kHere, "the whole", all);
  if (all.rows != size_ * mine.rows || all.cols != mine.cols) {
    throw bad_input(kHere, fmt::format("{} x {} from each of {} ranks go to {} x {}; they need {} x {}", mine.rows,
                                       mine.cols, size_, all.rows, all.cols, size_ * mine.rows, mine.cols));
  }
  announce(kHere, mine.rows, mine.cols, detail_of(wire));
  count(kHere, (size_ - 1) * wire_bytes(mine, wire));
  if (size_ == 1) return copy_rows(mine, all, wire);
  const bool apart = !overlap(mine, all);
  const std::span<const std::byte> send = packed(mine, wire, apart);
  if (apart && travels_in_place(all, wire)) {
    return do_all_gather(send, std::as_writable_bytes(std::span(all.data, extent(all) / sizeof(float))));
  }
  const std::span<std::byte> receive = scratch(1, wire_bytes(all, wire));
  do_all_gather(send, receive);
  unpack(receive.data(), all, wire);
}

void Communicator::all_to_all(ConstRows send, Rows receive, Wire wire) {
  constexpr Operation kHere = Operation::all_to_all;
  check_rows(kHere, "what is sent", send);
  check_rows(kHere, "what is received", receive);
  if (send.rows != receive.rows || send.cols != receive.cols || send.rows % size_ != 0) {
    throw bad_input(kHere,
                    fmt::format("{} x {} go out and {} x {} come in; both must be the same and the rows a multiple "
                                "of the {} ranks",
                                send.rows, send.cols, receive.rows, receive.cols, size_));
  }
  announce(kHere, send.rows, send.cols, detail_of(wire));
  count(kHere, wire_bytes(send, wire) / size_ * (size_ - 1));
  if (size_ == 1) return copy_rows(send, receive, wire);
  const bool apart = !overlap(send, receive);
  const std::span<const std::byte> out = packed(send, wire, apart);
  if (apart && travels_in_place(receive, wire)) {
    return exchange(out, std::as_writable_bytes(std::span(receive.data, extent(receive) / sizeof(float))));
  }
  const std::span<std::byte> in = scratch(1, wire_bytes(receive, wire));
  exchange(out, in);
  unpack(in.data(), receive, wire);
}

void Communicator::reduce_scatter(ConstRows parts, Rows mine, Wire wire) {
  constexpr Operation kHere = Operation::reduce_scatter;
  check_rows(kHere, "the parts", parts);
  check_rows(kHere, "the sum", mine);
  if (parts.rows != size_ * mine.rows || parts.cols != mine.cols) {
    throw bad_input(
        kHere, fmt::format("parts of {} x {} are summed to {} x {} on each of {} ranks; they need {} x {}", parts.rows,
                           parts.cols, mine.rows, mine.cols, size_, size_ * mine.rows, mine.cols));
  }
  announce(kHere, parts.rows, parts.cols, detail_of(wire));
  count(kHere, wire_bytes(parts, wire) / size_ * (size_ - 1));
  if (size_ == 1) return copy_rows(parts, mine, wire);
  const std::span<const std::byte> out = packed(parts, wire, true);
  const std::span<std::byte> in = scratch(1, wire_bytes(parts, wire));
  exchange(out, in);
  sum_blocks(in.data(), size_, mine, wire);
}

void Communicator::send(int to, int tag, std::span<const std::byte> data) {
  check_peer(Operation::send, to, tag);
  count(Operation::send, std::ssize(data));
  do_send(to, tag, data);
}

void Communicator::receive(int from, int tag, std::span<std::byte> data) {
  check_peer(Operation::receive, from, tag);
  count(Operation::receive, 0);
  do_receive(from, tag, data);
}

}  // namespace trireme::comm
