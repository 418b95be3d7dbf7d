#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace trireme {
namespace {

// How long a worker spins for the next loop before it sleeps: decode steps follow each other within microseconds.
constexpr int kSpins = 20000;

void relax() { __builtin_ia32_pause(); }

}  // namespace

// A loop is open from begin_loop to end_loop. A worker may run ranges only between entering and leaving, and it looks
// whether the loop is open after it entered; the caller closes the loop and then waits for those inside. So a worker
// that wakes late finds the loop closed (or the next one open) and nobody waits for it. Both sides store before they
// load, in one total order: one of them sees the other.
struct ThreadPool::State {
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  std::atomic<int64_t> next{0};
  std::atomic<bool> open{false};
  std::atomic<int> inside{0};
  std::atomic<uint64_t> generation{0};  // tells workers that a new loop began
  std::atomic<bool> stop{false};
  std::atomic<int> sleeping{0};
  std::mutex mutex;
  std::condition_variable wake;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void run_ranges() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      try {
        (*body)(begin, std::min(begin + grain, count));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void wait_for_news(uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation.load() != seen) return;
      relax();
    }
    std::unique_lock lock(mutex);
    sleeping.fetch_add(1);
    wake.wait(lock, [&] { return generation.load() != seen; });
    sleeping.fetch_sub(1);
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      wait_for_news(seen);
      seen = generation.load();
      if (stop.load()) return;
      inside.fetch_add(1);
      if (open.load()) run_ranges();
      inside.fetch_sub(1);
    }
  }

  void end_workers() {
    stop.store(true);
    begin_loop();
    for (std::thread& worker : workers) worker.join();
  }

  void begin_loop() {
    open.store(true);
    generation.fetch_add(1);
    if (sleeping.load() == 0) return;
    const std::lock_guard lock(mutex);
    wake.notify_all();
  }

  void end_loop() {
    open.store(false);
    for (int spin = 0; inside.load() != 0; ++spin) {
      if (spin < kSpins) {
        relax();
      } else {
        std::this_thread::yield();  // more threads than cores: let the one inside run
      }
    }
  }
};

int thread_count(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads < 1 || threads > 1024) {
    throw BadInput("threads is " + std::to_string(threads) + "; it must be from 1 to 1024");
  }
  try {
    state_->workers.reserve(static_cast<size_t>(threads) - 1);
    for (int i = 1; i < threads; ++i) state_->workers.emplace_back([s = state_.get()] { s->work(); });
  } catch (const std::exception& error) {  // no memory, or no thread
    state_->end_workers();
    throw Failure("thread " + std::to_string(state_->workers.size() + 2) + " of " + std::to_string(threads) +
                  " cannot be started: " + error.what() + "; use fewer threads");
  }
}

ThreadPool::~ThreadPool() { state_->end_workers(); }

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  State& s = *state_;
  if (s.workers.empty() || count <= grain) {
    body(0, count);
    return;
  }
  s.body = &body;
  s.count = count;
  s.grain = grain;
  s.next.store(0, std::memory_order_relaxed);
  s.begin_loop();
  s.run_ranges();
  s.end_loop();
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace trireme
