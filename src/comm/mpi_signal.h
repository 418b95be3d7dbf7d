// What happens to this process when mpirun ends the job.
#pragma once

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

namespace trireme::comm {

// The host's name, or what TRIREME_HOST_ID says instead.
std::string host_name();

// While it lives, SIGTERM (which mpirun sends to the survivors when a rank died) prints one line and ends this process
// with status 1 within a second, whatever its threads do. Threads that started before it was made must have SIGTERM
// blocked.
class EndWatch {
 public:
  explicit EndWatch(int rank);
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

  // From now on SIGTERM ends the process without a line: it has said why already.
  void silence() { silent_.store(true); }

 private:
  void watch() const;

  std::string line_;
  sigset_t before_{};
  std::atomic<bool> silent_{false};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace trireme::comm
