#include "comm/stream.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::comm {

struct Stream::State {
  std::mutex mutex;
  std::condition_variable given;
  std::deque<std::packaged_task<void()>> queue;
  bool closed = false;
  std::thread thread;

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      given.wait(lock, [this] { return closed || !queue.empty(); });
      if (queue.empty()) return;
      std::packaged_task<void()> task = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      task();     // what it throws goes to its event
      task = {};  // what the work holds is released here, before the next begins
      lock.lock();
    }
  }
};

Stream::Stream() : state_(std::make_unique<State>()) {
  state_->thread = std::thread([state = state_.get()] { state->work(); });
}

Stream::~Stream() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  state_->given.notify_one();
  state_->thread.join();
}

Event Stream::run(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  Event done(task.get_future().share());
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(task));
  }
  state_->given.notify_one();
  return done;
}

}  // namespace trireme::comm
