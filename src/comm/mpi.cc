#include "comm/mpi.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "comm/members.h"
#include "comm/mpi_communicator.h"
#include "comm/mpi_signal.h"

namespace trireme::comm {
namespace {

constexpr std::array kRankVariables = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

// The rank that the launcher gave this process; -1 without a launcher.
int launched_rank() {
  for (const char* variable : kRankVariables) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank);
  }
  return -1;
}

[[noreturn]] void end_job(int rank, const std::string& reason, EndWatch& watch) {
  watch.silence();
  const std::string line = fmt::format("rank {}: {}\n", rank, reason);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

// Hosts in rank order, numbered from 0.
std::vector<int> number_hosts(const std::vector<std::string>& names) {
  std::vector<int> hosts;
  for (size_t r = 0; r < names.size(); ++r) {
    const size_t first = static_cast<size_t>(std::find(names.begin(), names.end(), names[r]) - names.begin());
    if (first < r && hosts[first] != hosts.back()) {
      throw Failure(
          fmt::format("rank {} is on host {} as rank {} is, but rank {} between them is on host {}; start the "
                      "ranks of a host one after the other (mpirun --map-by slot)",
                      r, names[r], first, r - 1, names[r - 1]));
    }
    hosts.push_back(r == 0 ? 0 : first < r ? hosts.back() : hosts.back() + 1);
  }
  return hosts;
}

// FNV-1a (Fowler, Noll, Vo), the same in every process.
int tag_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return static_cast<int>(hash % static_cast<uint64_t>(Communicator::kTags));
}

class MpiWorld final : public World {
 public:
  MpiWorld(bool checked, std::chrono::seconds patience, EndWatch& watch)
      : checked_(checked), patience_(patience), watch_(watch) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI");
    check_mpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI");
    check_mpi(MPI_Comm_rank(world_, &rank_), "MPI");
    check_mpi(MPI_Comm_size(world_, &size_), "MPI");
    hosts_ = number_hosts(gather_host_names());
  }

  // Waits for all ranks, so that MPI_Finalize does not have to: it burns a core.
  void finish() {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibarrier(world_, &request), "the end of the job");
    wait_all(std::span(&request, 1), {}, std::chrono::seconds(0), "the end of the job");
    check_mpi(MPI_Comm_free(&world_), "MPI");
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  int host(int rank) const override {
    if (rank < 0 || rank >= size_) throw BadInput(fmt::format("rank {} is not one of 0 to {}", rank, size_ - 1));
    return hosts_[static_cast<size_t>(rank)];
  }

  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> members) override {
    const int place = place_in_group(name, members, rank_, size_);
    const int size = static_cast<int>(members.size());
    MPI_Comm transport = MPI_COMM_NULL;
    if (size > 1) {
      assemble(name, members);
      transport = create(name, members);
    }
    return make_mpi_communicator(name, place, size, checked_, patience_, transport);
  }

  void abort(const std::string& reason) override { end_job(rank_, reason, watch_); }

 private:
  std::vector<std::string> gather_host_names() const {
    constexpr size_t kLength = 256;
    std::array<char, kLength> mine{};
    host_name().copy(mine.data(), kLength - 1);
    std::vector<char> all(kLength * static_cast<size_t>(size_));
    check_mpi(MPI_Allgather(mine.data(), kLength, MPI_CHAR, all.data(), kLength, MPI_CHAR, world_), "names of hosts");
    std::vector<std::string> names;
    for (size_t r = 0; r < static_cast<size_t>(size_); ++r) names.emplace_back(all.data() + r * kLength);
    return names;
  }

  // Waits for all members, with patience and without burning a core, which the call that makes the group cannot.
  void assemble(const std::string& name, std::span<const int> members) const {
    const std::string what = fmt::format("making group {}", name);
    const int tag = tag_of(name);
    const int first = members.front();
    // The others report to the first, which then answers.
    const std::span<const int> peers = rank_ == first ? members.subspan(1) : members.first(1);
    for (const bool sends : {rank_ != first, rank_ == first}) {
      std::vector<MPI_Request> requests(peers.size(), MPI_REQUEST_NULL);
      for (size_t i = 0; i < peers.size(); ++i) {
        check_mpi(sends ? MPI_Isend(nullptr, 0, MPI_BYTE, peers[i], tag, world_, &requests[i])
                        : MPI_Irecv(nullptr, 0, MPI_BYTE, peers[i], tag, world_, &requests[i]),
                  what);
      }
      wait_all(requests, {}, patience_, what);
    }
  }

  MPI_Comm create(const std::string& name, std::span<const int> members) const {
    const std::string what = fmt::format("making group {}", name);
    MPI_Group everyone = MPI_GROUP_NULL;
    MPI_Group group = MPI_GROUP_NULL;
    MPI_Comm made = MPI_COMM_NULL;
    check_mpi(MPI_Comm_group(world_, &everyone), what);
    check_mpi(MPI_Group_incl(everyone, static_cast<int>(members.size()), members.data(), &group), what);
    check_mpi(MPI_Comm_create_group(world_, group, tag_of(name), &made), what);
    check_mpi(MPI_Group_free(&group), what);
    check_mpi(MPI_Group_free(&everyone), what);
    return made;
  }

  bool checked_;
  std::chrono::seconds patience_;
  EndWatch& watch_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> hosts_;
};

}  // namespace

bool under_mpi() { return launched_rank() >= 0; }

int run_mpi(bool checked, const std::function<void(World&)>& body, std::chrono::seconds patience) {
  int rank = std::max(launched_rank(), 0);
  EndWatch watch(rank);  // before MPI starts threads
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  try {
    if (provided != MPI_THREAD_MULTIPLE) {
      throw Failure("this MPI library does not let several threads call it; build it with MPI_THREAD_MULTIPLE");
    }
    MpiWorld world(checked, patience, watch);
    rank = world.rank();
    body(world);
    world.finish();
  } catch (const std::exception& error) {
    end_job(rank, error.what(), watch);
  } catch (...) {
    end_job(rank, "something that is no exception was thrown", watch);
  }
  check_mpi(MPI_Finalize(), "MPI_Finalize");
  return 0;
}

}  // namespace trireme::comm
