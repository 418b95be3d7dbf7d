// A few threads for work that is too long for an I/O thread: reading bodies, encoding prompts, turning tokens into
// answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::serve {

class Workers {
 public:
  // Throws Failure if the system does not give as many threads.
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Runs `task` on one of the threads, in order of arrival. Tasks must not throw. After stop() tasks are dropped.
  void post(std::function<void()> task);
  // Joins the threads; what has not begun is dropped. Idempotent.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace trireme::serve
