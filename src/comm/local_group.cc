#include "comm/local_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

namespace trireme::comm {
namespace {

constexpr size_t kSmallBytes = 4096;
// Tries before a rank sleeps, where there is a core for every rank: a few microseconds.
constexpr int kSpins = 300;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

LocalGroup::LocalGroup(std::string name, int size, std::chrono::seconds patience)
    : name_(std::move(name)), size_(size), patience_(patience), mailed_(static_cast<size_t>(size)) {
  if (static_cast<unsigned>(size) <= std::thread::hardware_concurrency()) spins_ = kSpins;
  const auto ranks = static_cast<size_t>(size);
  entry_.here.resize(ranks);
  exit_.here.resize(ranks);
  for (Shown& shown : shown_) {
    shown.calls.resize(ranks);
    shown.bytes.resize(ranks);
    shown.sizes.resize(ranks);
  }
}

LocalGroup::Call LocalGroup::copied_if_small(int rank, const Call& call, Shown& shown) const {
  Call copy = call;
  if (call.send.size() > kSmallBytes) return copy;
  std::vector<std::byte>& bytes = shown.bytes[static_cast<size_t>(rank)];
  std::vector<int64_t>& sizes = shown.sizes[static_cast<size_t>(rank)];
  bytes.assign(call.send.begin(), call.send.end());
  sizes.assign(call.send_bytes.begin(), call.send_bytes.end());
  copy.send = bytes;
  copy.send_bytes = sizes;
  copy.small = true;
  return copy;
}

std::span<const LocalGroup::Call> LocalGroup::enter(int rank, const Call& call) {
  // The count cannot change before this rank arrives.
  Shown& shown = shown_[entry_.completed.load(std::memory_order_acquire) % 2];
  shown.calls[static_cast<size_t>(rank)] = copied_if_small(rank, call, shown);
  std::unique_lock lock(mutex_);
  if (!why_.empty()) throw ended(call.operation);
  meet(lock, entry_, rank, &call.operation);
  return shown.calls;
}

void LocalGroup::leave(int rank) {
  std::unique_lock lock(mutex_);
  meet(lock, exit_, rank, nullptr);
}

void LocalGroup::meet(std::unique_lock<std::mutex>& lock, Meeting& meeting, int rank, const Operation* endable) {
  const uint64_t before = meeting.completed.load(std::memory_order_relaxed);
  const auto complete = [&] { return meeting.completed.load(std::memory_order_acquire) != before; };
  if (++meeting.arrived == size_) {
    meeting.arrived = 0;
    std::fill(meeting.here.begin(), meeting.here.end(), false);
    meeting.completed.store(before + 1, std::memory_order_release);
    lock.unlock();
    meeting.changed.notify_all();
    return;
  }
  meeting.here[static_cast<size_t>(rank)] = true;
  if (spins_ > 0) {
    lock.unlock();
    for (int i = 0; i < spins_; ++i, relax()) {
      if (complete()) return;
    }
    lock.lock();
  }
  const auto until = std::chrono::steady_clock::now() + patience_;
  while (!complete()) {
    if (endable != nullptr && !why_.empty()) throw ended(*endable);
    if (endable == nullptr) {
      meeting.changed.wait(lock);
    } else if (!wait(lock, meeting.changed, until) && !complete() && why_.empty()) {
      end(fmt::format("rank {} waited {} s for {}", rank, patience_.count(), missing(meeting)));
    }
  }
}

std::string LocalGroup::missing(const Meeting& meeting) const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (!meeting.here[static_cast<size_t>(r)]) ranks.push_back(r);
  }
  return fmt::format("rank{} {} of {}, which did not call", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                     size_);
}

bool LocalGroup::wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                      std::chrono::steady_clock::time_point until) const {
  if (patience_ > std::chrono::seconds(0)) return changed.wait_until(lock, until) == std::cv_status::no_timeout;
  changed.wait(lock);
  return true;
}

void LocalGroup::put(int from, int to, int tag, std::span<const std::byte> data) {
  std::vector<std::byte> copy(data.begin(), data.end());
  {
    const std::lock_guard lock(mutex_);
    if (!why_.empty()) throw ended(Operation::send);
    mail_[{to, from, tag}].push_back(std::move(copy));
  }
  mailed_[static_cast<size_t>(to)].notify_one();
}

std::vector<std::byte> LocalGroup::take(int from, int to, int tag) {
  std::unique_lock lock(mutex_);
  auto& messages = mail_[{to, from, tag}];
  const auto until = std::chrono::steady_clock::now() + patience_;
  while (messages.empty()) {
    if (!why_.empty()) throw ended(Operation::receive);
    if (!wait(lock, mailed_[static_cast<size_t>(to)], until) && messages.empty() && why_.empty()) {
      end(fmt::format("rank {} waited {} s for rank {}, which did not send with tag {}", to, patience_.count(), from,
                      tag));
    }
  }
  std::vector<std::byte> message = std::move(messages.front());
  messages.pop_front();
  return message;
}

void LocalGroup::abort(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (why_.empty()) end(why);
}

// With the lock held.
void LocalGroup::end(const std::string& why) {
  why_ = why;
  entry_.changed.notify_all();
  for (std::condition_variable& mailed : mailed_) mailed.notify_all();
}

Failure LocalGroup::ended(Operation operation) const {
  return Failure(fmt::format("group {}: {} ended: {}", name_, operation_name(operation), why_));
}

}  // namespace trireme::comm
