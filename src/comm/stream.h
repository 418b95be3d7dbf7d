// A thread that runs given work in order, beside its owner: what a CUDA stream is to a GPU.
#pragma once

#include <functional>
#include <future>
#include <memory>

namespace trireme::comm {

// The end of some work on a stream. Copies share it.
class Event {
 public:
  Event() = default;  // happened already
  explicit Event(std::shared_future<void> done) : done_(std::move(done)) {}
  // Blocks until the work ended; rethrows what it threw.
  void wait() const {
    if (done_.valid()) done_.get();
  }

 private:
  std::shared_future<void> done_;
};

class Stream {
 public:
  Stream();
  ~Stream();  // after all work that was given ended
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Event run(std::function<void()> work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
