// A group over an MPI communicator, and how this process waits for others without burning a core.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace trireme::comm {

// Failure with MPI's words unless `status` is MPI_SUCCESS. `what` names the group and the operation.
void check_mpi(int status, const std::string& what);

// Calls `done` until it is true: first with yields between, soon with short sleeps, since ranks may outnumber cores.
// Throws a Failure "<what> waited ..." after `patience`; 0: never.
void wait_until(const std::function<bool()>& done, std::chrono::seconds patience,
                const std::function<std::string()>& what);

// Waits for all of `requests`, which then are MPI_REQUEST_NULL. `statuses` is empty or one a request; then the
// caller looks at their MPI_ERROR, else an error is a Failure.
void wait_all(std::span<MPI_Request> requests, std::span<MPI_Status> statuses, std::chrono::seconds patience,
              const std::string& what);

// Takes `transport`, whose ranks are the group's, and frees it at the end; MPI_COMM_NULL for a group of one. Warms up.
std::unique_ptr<Communicator> make_mpi_communicator(const std::string& name, int rank, int size, bool checked,
                                                    std::chrono::seconds patience, MPI_Comm transport);

}  // namespace trireme::comm
