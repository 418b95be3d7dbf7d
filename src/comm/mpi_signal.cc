#include "comm/mpi_signal.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>

namespace trireme::comm {
namespace {

// mpirun sends SIGKILL one second after SIGTERM, but at once when a first survivor exits. So each stays for a while
// after its line, in which the others, who get the signal within milliseconds, write theirs. Less than that second.
constexpr std::chrono::milliseconds kLinger{400};

sigset_t only_term() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

std::string host_name() {
  if (const char* given = std::getenv("TRIREME_HOST_ID"); given != nullptr && *given != '\0') return given;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

EndWatch::EndWatch(int rank)
    : line_(fmt::format("rank {} on host {}: ending, because mpirun ended the job (another rank died?)\n", rank,
                        host_name())) {
  const sigset_t term = only_term();
  pthread_sigmask(SIG_BLOCK, &term, &before_);
  thread_ = std::thread([this] { watch(); });
}

EndWatch::~EndWatch() {
  over_.store(true);
  pthread_kill(thread_.native_handle(), SIGTERM);  // to this thread only: wakes sigwait
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void EndWatch::watch() const {
  const sigset_t term = only_term();
  int signal = 0;
  while (sigwait(&term, &signal) != 0) {
  }
  if (over_.load()) return;
  // Nobody can be told if this fails.
  if (!silent_.load() && write(STDERR_FILENO, line_.data(), line_.size()) < 0) _exit(1);
  std::this_thread::sleep_for(kLinger);
  _exit(1);
}

}  // namespace trireme::comm
