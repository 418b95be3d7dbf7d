#include "serve/workers.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/error.h"

namespace trireme::serve {

Workers::Workers(int threads) {
  try {
    threads_.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::exception& error) {  // no memory, or no thread
    const size_t started = threads_.size();
    stop();
    throw Failure(fmt::format("worker thread {} of {} cannot be started: {}", started + 1, threads, error.what()));
  }
}

Workers::~Workers() { stop(); }

void Workers::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
  }
  more_.notify_one();
}

void Workers::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);  // destroyed without the lock: a task may own what posts again
  }
  more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (stopped_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace trireme::serve
