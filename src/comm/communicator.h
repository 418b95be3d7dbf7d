// One rank's end of a group of ranks that talk to each other. Backends: local.h (threads of one process) and mpi.h.
//
// Rules for every operation:
// * All ranks of the group call the same operations in the same order with the same shapes. Calls block; what shall run
//   beside other work goes on a Stream (stream.h), which has communicators of its own.
// * A communicator is used by one thread at a time. A group of one rank makes no transport call.
// * Sums add the ranks' parts in rising rank order, in float32: the bits do not depend on timing.
// * A peer that died or that calls something else ends the call with a Failure that names the rank, never with a hang.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/matrix.h"

namespace trireme::comm {

// How float rows travel: as they are, or as bfloat16 (two bytes; exact for rounded activations, rounded otherwise).
enum class Wire : uint8_t { f32, bf16 };

enum class Operation : uint8_t { barrier, broadcast, all_gather, all_to_all, reduce_scatter, send, receive };
inline constexpr int kOperations = 7;
std::string_view operation_name(Operation operation);

// What one rank sent to other ranks, by operation, in bytes on the wire; a block that stays on its rank is not counted.
// A broadcast counts at its root, once for every other rank.
struct Traffic {
  struct Count {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  std::array<Count, kOperations> by{};
  Count& operator[](Operation operation) { return by[static_cast<size_t>(operation)]; }
  const Count& operator[](Operation operation) const { return by[static_cast<size_t>(operation)]; }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }  // of the group: "attention", "experts", ...
  int rank() const { return rank_; }                 // in the group
  int size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  // With checked communicators only, and not counted: throws a Failure that names the first rank whose `value` is not
  // rank 0's. For what all ranks of a group must know alike before they exchange anything.
  void agree(std::string_view what, uint64_t value);

  void barrier();
  void broadcast(std::span<std::byte> data, int root);

  // `all` is size() blocks of mine.size() bytes in rank order. What is sent and what is received must not overlap (here
  // and in all_to_all; rows may).
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  // Block i of `send` goes to rank i and arrives as block rank() there. Both spans hold size() equal blocks.
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive);
  // Blocks of any size: `send_bytes[i]` go to rank i, `receive_bytes[i]` come from rank i (what rank i's send_bytes
  // says for this rank), both back to back.
  void all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                  std::span<const int64_t> receive_bytes);

  // The same for rows of floats (strides are the caller's). all.rows = size() * mine.rows.
  void all_gather(ConstRows mine, Rows all, Wire wire);
  // send.rows = receive.rows = size() * (rows of a block).
  void all_to_all(ConstRows send, Rows receive, Wire wire);
  // parts.rows = size() * mine.rows; mine = sum over the ranks of their block rank(), each part rounded for the wire.
  void reduce_scatter(ConstRows parts, Rows mine, Wire wire);

  // Point to point, in order for each (pair, tag). A receive must name the exact size. send() may return before the
  // peer received; `data` is free again when it returns. 0 <= tag < kTags. No rank sends to itself.
  static constexpr int kTags = 1 << 30;
  void send(int to, int tag, std::span<const std::byte> data);
  void receive(int from, int tag, std::span<std::byte> data);

 protected:
  Communicator(std::string name, int rank, int size, bool checked);

  // The transport. Sizes were checked. `do_all_to_all` gets byte counts of all blocks.
  virtual void do_barrier() = 0;
  virtual void do_broadcast(std::span<std::byte> data, int root) = 0;
  virtual void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual void do_all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                             std::span<std::byte> receive, std::span<const int64_t> receive_bytes) = 0;
  virtual void do_send(int to, int tag, std::span<const std::byte> data) = 0;
  virtual void do_receive(int from, int tag, std::span<std::byte> data) = 0;

  // One small call of each kind, every pair of ranks included; not counted in traffic().
  void warm_up();

 private:
  // With `checked` each collective first gathers a fingerprint of (operation, shape, wire, root, call number) and
  // throws a Failure that names the first rank whose differs from rank 0's, and both calls in words.
  void announce(Operation operation, int64_t rows, int64_t cols, int detail);
  // With `checked`: what every rank sends to this one must be what it expects. Sizes of blocks differ from rank to
  // rank, so that fingerprints cannot compare them.
  void check_blocks(std::span<const int64_t> send_bytes, std::span<const int64_t> receive_bytes);
  void count(Operation operation, int64_t bytes);
  // Rows of floats as they travel: in place where they are dense float32, else a copy in scratch.
  std::span<const std::byte> packed(ConstRows rows, Wire wire, bool in_place);
  std::span<std::byte> scratch(size_t which, int64_t bytes);
  void exchange(std::span<const std::byte> send, std::span<std::byte> receive);  // equal blocks
  Failure failure(const std::string& what) const;
  BadInput bad_input(Operation operation, const std::string& what) const;
  void check_rank(Operation operation, int rank) const;
  void check_peer(Operation operation, int peer, int tag) const;
  void check_rows(Operation operation, const char* what, ConstRows rows) const;

  std::string name_;
  int rank_ = 0;
  int size_ = 1;
  bool checked_ = false;
  int64_t calls_ = 0;
  Traffic traffic_;
  std::array<std::vector<std::byte>, 2> scratch_;  // wire forms of rows, kept from call to call
};

}  // namespace trireme::comm
