// The memory that the threads of one local group share: where collectives meet, and the mail between pairs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace trireme::comm {

// A collective in this file has one or two meetings. In enter() every rank shows its call; when all have, each copies
// what it wants out of the others' memories. A rank whose memory others read must then leave(), so that its caller does
// not change or free that memory too early. Small data is copied into the shown call itself, which saves the second
// meeting: calls are kept for two collectives in turn, and nobody shows the next but one before all have entered the
// next.
//
// What ends a group (abort(), patience) ends it before a meeting is complete, for all its ranks; from a complete
// enter() to the end of leave() nothing waits for anything outside the group, so that memory is never taken away under
// a reader.
class LocalGroup {
 public:
  struct Call {
    Operation operation = Operation::barrier;
    int root = 0;                              // of a broadcast
    int64_t block_bytes = 0;                   // of a broadcast or all_gather
    std::span<const std::byte> send = {};      // what others may read
    std::span<const int64_t> send_bytes = {};  // all_to_all: blocks of `send`, one a rank
    bool small = false;                        // `send` and `send_bytes` were copied into the group's memory
  };

  LocalGroup(std::string name, int size, std::chrono::seconds patience);

  // Shows this rank's call and waits for those of all ranks, which it returns in rank order. Valid until this rank
  // enters again or, for calls that are not small, leaves. Throws a Failure if the group ends first.
  std::span<const Call> enter(int rank, const Call& call);
  // Waits until all ranks leave. To be called by all if any call is not small, whatever happened since enter().
  void leave(int rank);

  void put(int from, int to, int tag, std::span<const std::byte> data);
  // The oldest message that was put for (from, to, tag).
  std::vector<std::byte> take(int from, int to, int tag);

  // Every call that waits or comes later throws a Failure with `why`, except where a collective is under way already.
  void abort(const std::string& why);

  const std::string& name() const { return name_; }
  int size() const { return size_; }

 private:
  struct Meeting {
    std::atomic<uint64_t> completed{0};
    std::vector<bool> here;  // who waits
    int arrived = 0;
    std::condition_variable changed;
  };
  struct Shown {
    std::vector<Call> calls;
    std::vector<std::vector<std::byte>> bytes;  // copies of small data, one a rank
    std::vector<std::vector<int64_t>> sizes;
  };

  Call copied_if_small(int rank, const Call& call, Shown& shown) const;
  void meet(std::unique_lock<std::mutex>& lock, Meeting& meeting, int rank, const Operation* endable);
  std::string missing(const Meeting& meeting) const;
  // Waits until `changed` is notified or `until` passes; false if it passed.
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
            std::chrono::steady_clock::time_point until) const;
  void end(const std::string& why);
  Failure ended(Operation operation) const;

  std::string name_;
  int size_;
  std::chrono::seconds patience_;
  int spins_ = 0;

  std::mutex mutex_;
  std::string why_;  // not empty: the group ended
  Meeting entry_;
  Meeting exit_;
  std::array<Shown, 2> shown_;
  std::map<std::array<int, 3>, std::deque<std::vector<std::byte>>> mail_;  // by (to, from, tag)
  std::vector<std::condition_variable> mailed_;                            // one a receiver
};

}  // namespace trireme::comm
