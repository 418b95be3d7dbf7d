// Ranks as processes under mpirun (Open MPI).
#pragma once

#include <chrono>
#include <functional>

#include "comm/world.h"

namespace trireme::comm {

// True if this process was started by mpirun (or another PMI launcher) with more than one rank or with one.
bool under_mpi();

// Runs body(world) as this process's rank and returns its exit status. Initialises MPI for several threads (streams)
// and finalises it. If the body throws, the message goes to stderr with the rank's number and the whole job is aborted.
// When another rank dies, mpirun's signal ends this process within seconds, with a line on stderr that says so.
//
// Call it once, before other threads start: it blocks SIGTERM (mpirun's signal) in this thread and in those made later.
// World::abort() prints its reason and ends all processes; it does not return. A large send() returns when the peer
// received. A call that waits longer than `patience` for its peers throws a Failure; 0: it waits for ever.
// TRIREME_HOST_ID, if set, replaces the host's name where World::host() compares hosts.
int run_mpi(bool checked, const std::function<void(World&)>& body,
            std::chrono::seconds patience = std::chrono::seconds(120));

}  // namespace trireme::comm
