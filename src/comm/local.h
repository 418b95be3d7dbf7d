// Ranks as threads of one process: collectives are copies between their memories.
#pragma once

#include <chrono>
#include <functional>

#include "comm/world.h"

namespace trireme::comm {

struct LocalOptions {
  bool checked = false;    // compare fingerprints of every collective (Communicator::announce)
  int ranks_per_host = 0;  // what World::host() says: rank / ranks_per_host; 0: all on host 0
  // A call that waits longer for its peers throws a Failure that names them; 0: it waits for ever.
  std::chrono::seconds patience{120};
};

// Runs body(world) on `size` threads, one a rank, and returns when all have ended. If a body throws, the others' calls
// end with a Failure, and the first exception (of the rank that began it) is rethrown here with the rank's number in
// front: a BadInput as BadInput, everything else as Failure. World::abort() counts as a body that threw.
//
// A body must not destroy a Stream whose work waits for peers before it told them: the destructor waits for that work.
void run_local(int size, const LocalOptions& options, const std::function<void(World&)>& body);

}  // namespace trireme::comm
