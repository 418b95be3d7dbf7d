// Run by mpirun: the checks of operation_checks.h over processes, and ranks that fail on purpose.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "comm/mpi.h"
#include "comm/operation_checks.h"
#include "comm/stream.h"

namespace {

using namespace trireme;
using namespace trireme::comm;

// Above the size to which messages are cut.
void long_messages(World& world) {
  if (world.rank() > 1) return;
  const std::vector<int> members = checks::range(0, 2);
  const auto pair = world.group("long", members);
  constexpr int64_t kLong = (int64_t{33} << 20) + 5;
  checks::broadcast_bytes(*pair, members, 1, kLong, 1);
  checks::all_gather_bytes(*pair, members, 2, kLong / 2);
  checks::all_to_all_uneven(*pair, members, 3, 2 * kLong);
  for (const int64_t bytes : {kLong, int64_t{32} << 20}) {
    std::vector<std::byte> data(static_cast<size_t>(bytes), std::byte{static_cast<uint8_t>(bytes % 97)});
    std::vector<std::byte> got(world.rank() == 1 ? data.size() : 0);
    if (world.rank() == 0) pair->send(1, 0, data);
    if (world.rank() == 1) pair->receive(0, 0, got);
    checks::require(world.rank() == 0 || got == data, "a long message");
  }
}

// Two groups at once from two threads of every rank.
void beside_each_other(World& world) {
  const std::vector<int> members = checks::range(0, world.size());
  const auto main = world.group("main", members);
  const auto side = world.group("side", members);
  Stream stream;
  Event done;
  for (uint64_t n = 0; n < 50; ++n) {
    done = stream.run([&, n] { checks::all_gather_rows(*side, members, n, 7, 65, 0, Wire::bf16); });
    checks::reduce_scatter_rows(*main, members, n, 3, 65, 1, Wire::f32);
  }
  done.wait();
}

void run_checks(World& world) {
  checks::require(world.size() == 4, "{} ranks were started, the checks need 4", world.size());
  for (int size = 1; size <= world.size(); ++size) {
    const std::vector<int> members = checks::range(0, size);
    if (world.rank() < size) checks::every_operation(*world.group("work", members), members);
  }
  checks::traffic_counts(world);
  checks::random_operations(world, 3, 400);
  long_messages(world);
  beside_each_other(world);
  checks::require(world.host(0) == 0, "the first host's number");
  fmt::print("rank {}: OK\n", world.rank());
}

void fail(World& world, std::string_view how) {
  const std::vector<int> members = checks::range(0, world.size());
  const auto group = world.group("work", members);
  std::vector<std::byte> data(world.rank() == 0 ? 10 : 8);
  for (int n = 0;; ++n) {
    group->barrier();
    if (n < 20) continue;
    if (how == "mismatch") group->broadcast(data, 0);
    if (how == "size") world.rank() == 0 ? group->send(1, 2, data) : group->receive(0, 2, std::span(data).first(8));
    if (how == "late" && world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    if (world.rank() != 2) continue;
    if (how == "die") std::raise(SIGKILL);
    if (how == "throw") throw Failure("planted");
    if (how == "abort") world.abort("operator said stop");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "checks";
  if (!under_mpi()) {
    fmt::print(stderr, "start this with mpirun\n");
    return 2;
  }
  const bool checked = how == "checked" || how == "mismatch";
  const std::chrono::seconds patience(how == "late" ? 1 : 60);
  return run_mpi(
      checked,
      [&](World& world) {
        if (how == "checks" || how == "checked") return run_checks(world);
        if (how == "host") return void(fmt::print("rank {} on host {}\n", world.rank(), world.host(world.rank())));
        fail(world, how);
      },
      patience);
}
