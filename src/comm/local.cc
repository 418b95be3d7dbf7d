#include "comm/local.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/local_group.h"
#include "comm/members.h"

namespace trireme::comm {
namespace {

using Calls = std::span<const LocalGroup::Call>;
using Call = LocalGroup::Call;

constexpr int kMostRanks = 1024;

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

int64_t sum_before(std::span<const int64_t> counts, size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});
}

std::string in_words(const Call& call) {
  if (call.operation == Operation::broadcast) {
    return fmt::format("broadcast of {} bytes from rank {}", call.block_bytes, call.root);
  }
  if (call.operation == Operation::all_gather) return fmt::format("all_gather of {} bytes", call.block_bytes);
  return std::string(operation_name(call.operation));
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, bool checked)
      : Communicator(group->name(), rank, group->size(), checked), group_(std::move(group)) {
    warm_up();
  }

 private:
  // Enters, lets `copy_out` copy from the others, leaves. `misfit` says in words what is wrong with rank r's call
  // beside the operation, or nothing. Neither may throw: other ranks read this rank's memory until all have left.
  template <class Misfit, class CopyOut>
  void collective(const Call& mine, const Misfit& misfit, const CopyOut& copy_out) {
    const Calls calls = group_->enter(rank(), mine);
    std::string wrong;
    for (size_t r = 0; r < calls.size() && wrong.empty(); ++r) {
      const Call& other = calls[r];
      if (other.operation != mine.operation || other.root != mine.root || other.block_bytes != mine.block_bytes) {
        wrong = fmt::format("rank {} calls {}, rank {} calls {}; all ranks of a group must make the same calls", r,
                            in_words(other), rank(), in_words(mine));
      } else {
        wrong = misfit(r, other);
      }
    }
    if (wrong.empty()) copy_out(calls);
    if (std::any_of(calls.begin(), calls.end(), [](const Call& call) { return !call.small; })) group_->leave(rank());
    if (!wrong.empty()) throw Failure(fmt::format("group {}: {}", name(), wrong));
  }

  static std::string always_fits(size_t, const Call&) { return {}; }

  void do_barrier() override {
    collective({.operation = Operation::barrier}, always_fits, [](Calls) {});
  }

  void do_broadcast(std::span<std::byte> data, int root) override {
    Call mine{.operation = Operation::broadcast, .root = root, .block_bytes = std::ssize(data)};
    if (root == rank()) mine.send = data;
    collective(mine, always_fits, [&](Calls calls) {
      if (root != rank()) copy(calls[static_cast<size_t>(root)].send, data.data());
    });
  }

  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const Call call{.operation = Operation::all_gather, .block_bytes = std::ssize(mine), .send = mine};
    collective(call, always_fits, [&](Calls calls) {
      for (size_t r = 0; r < calls.size(); ++r) copy(calls[r].send, all.data() + r * mine.size());
    });
  }

  void do_all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                     std::span<const int64_t> receive_bytes) override {
    const Call call{.operation = Operation::all_to_all, .send = send, .send_bytes = send_bytes};
    const auto me = static_cast<size_t>(rank());
    const auto misfit = [&](size_t r, const Call& other) {
      if (other.send_bytes[me] == receive_bytes[r]) return std::string();
      return fmt::format("all_to_all: rank {} sends {} bytes to rank {}, which expects {}", r, other.send_bytes[me], me,
                         receive_bytes[r]);
    };
    collective(call, misfit, [&](Calls calls) {
      std::byte* to = receive.data();
      for (size_t r = 0; r < calls.size(); to += receive_bytes[r], ++r) {
        const auto first = static_cast<size_t>(sum_before(calls[r].send_bytes, me));
        copy(calls[r].send.subspan(first, static_cast<size_t>(receive_bytes[r])), to);
      }
    });
  }

  void do_send(int to, int tag, std::span<const std::byte> data) override { group_->put(rank(), to, tag, data); }

  void do_receive(int from, int tag, std::span<std::byte> data) override {
    const std::vector<std::byte> message = group_->take(from, rank(), tag);
    if (message.size() != data.size()) {
      throw Failure(fmt::format("group {}: receive: rank {} sent {} bytes with tag {} to rank {}, which expects {}",
                                name(), from, message.size(), tag, rank(), data.size()));
    }
    copy(message, data.data());
  }

  std::shared_ptr<LocalGroup> group_;
};

// What the ranks share beside their groups.
class Job {
 public:
  explicit Job(LocalOptions options) : options_(options) {}

  const LocalOptions& options() const { return options_; }

  // Keys: name, members, how often the caller made such a group before.
  std::shared_ptr<LocalGroup> group(const std::string& name, std::span<const int> members, int before) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<LocalGroup>& group = groups_[{name, std::vector(members.begin(), members.end()), before}];
    if (group == nullptr) {
      group = std::make_shared<LocalGroup>(name, static_cast<int>(members.size()), options_.patience);
      if (cause_) group->abort(*cause_);
    }
    return group;
  }

  // Only the first call counts.
  void abort(const std::string& cause, bool bad_input) {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    cause_ = cause;
    bad_input_ = bad_input;
    for (const auto& [key, group] : groups_) group->abort(cause);
  }

  void rethrow() const {
    if (cause_ && bad_input_) throw BadInput(*cause_);
    if (cause_) throw Failure(*cause_);
  }

 private:
  const LocalOptions options_;
  std::mutex mutex_;
  std::optional<std::string> cause_;
  bool bad_input_ = false;
  std::map<std::tuple<std::string, std::vector<int>, int>, std::shared_ptr<LocalGroup>> groups_;
};

class LocalWorld final : public World {
 public:
  LocalWorld(Job& job, int rank, int size) : job_(job), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  int host(int rank) const override {
    if (rank < 0 || rank >= size_) throw BadInput(fmt::format("rank {} is not one of 0 to {}", rank, size_ - 1));
    const int per_host = job_.options().ranks_per_host;
    return per_host == 0 ? 0 : rank / per_host;
  }

  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> members) override {
    const int place = place_in_group(name, members, rank_, size_);
    const int before = made_[{name, std::vector(members.begin(), members.end())}]++;
    return std::make_unique<LocalCommunicator>(job_.group(name, members, before), place, job_.options().checked);
  }

  void abort(const std::string& reason) override { job_.abort(fmt::format("rank {}: {}", rank_, reason), false); }

 private:
  Job& job_;
  int rank_;
  int size_;
  std::map<std::pair<std::string, std::vector<int>>, int> made_;
};

void run_rank(Job& job, int rank, int size, const std::function<void(World&)>& body) {
  try {
    LocalWorld world(job, rank, size);
    body(world);
  } catch (const BadInput& error) {
    job.abort(fmt::format("rank {}: {}", rank, error.what()), true);
  } catch (const std::exception& error) {
    job.abort(fmt::format("rank {}: {}", rank, error.what()), false);
  } catch (...) {
    job.abort(fmt::format("rank {}: something that is no exception was thrown", rank), false);
  }
}

}  // namespace

void run_local(int size, const LocalOptions& options, const std::function<void(World&)>& body) {
  if (size < 1 || size > kMostRanks)
    throw BadInput(fmt::format("ranks are {}; they must be 1 to {}", size, kMostRanks));
  if (options.ranks_per_host < 0 || options.patience.count() < 0) {
    throw BadInput(fmt::format("ranks_per_host is {} and patience {} s; neither may be negative",
                               options.ranks_per_host, options.patience.count()));
  }
  Job job(options);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  try {
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&job, rank, size, &body] { run_rank(job, rank, size, body); });
    }
  } catch (const std::system_error& error) {
    job.abort(fmt::format("cannot start thread {} of {}: {}", threads.size(), size, error.what()), false);
  }
  for (std::thread& thread : threads) thread.join();
  job.rethrow();
}

}  // namespace trireme::comm
