// A fixed set of threads that run one loop together. Work is cut by index, never by timing, so results do not depend on
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme {

// What a number of threads in options means: 0 is one a core.
int thread_count(int wanted);

class ThreadPool {
 public:
  // threads >= 1, the calling thread included. Throws BadInput otherwise, and Failure if the system does not give as
  // many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end) so that the ranges cover [0, count) once; a range is at least `grain` long except the last.
  // Returns when all are done. The ranges are handed out on demand. Not reentrant: a body must not call parallel_for.
  // The first exception thrown by a body is rethrown here after all ranges ended.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
