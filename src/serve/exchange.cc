#include "serve/exchange.h"

#include <utility>

namespace trireme::serve {

Exchange::Exchange(std::function<void()> wake, size_t max_queued) : wake_(std::move(wake)), max_queued_(max_queued) {}

void Exchange::send(HttpResponse response) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || abandoned_ || streaming_) return;
    response_ = std::move(response);
    finished_ = true;
    on_abandoned_ = nullptr;
  }
  wake_();
}

void Exchange::begin_stream() {
  const std::lock_guard lock(mutex_);
  if (!finished_) streaming_ = true;
}

void Exchange::write(std::string_view data) {
  bool too_slow = false;
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || abandoned_ || !streaming_) return;
    data_ += data;
    too_slow = data_.size() > max_queued_;
  }
  if (too_slow) abandon();
  wake_();
}

void Exchange::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || abandoned_) return;
    finished_ = true;
    on_abandoned_ = nullptr;
  }
  wake_();
}

void Exchange::on_abandoned(std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!abandoned_) {
      on_abandoned_ = std::move(action);
      return;
    }
  }
  action();
}

bool Exchange::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

Exchange::Pending Exchange::take() {
  const std::lock_guard lock(mutex_);
  Pending pending;
  pending.response = std::exchange(response_, std::nullopt);
  pending.streaming = streaming_;
  pending.data = std::exchange(data_, std::string());
  pending.finished = finished_;
  pending.abandoned = abandoned_;
  return pending;
}

void Exchange::abandon() {
  std::function<void()> action;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    abandoned_ = true;
    action = std::exchange(on_abandoned_, nullptr);
  }
  if (action) action();
}

}  // namespace trireme::serve
