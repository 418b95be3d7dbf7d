// All ranks of a job, from which groups are made.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace trireme::comm {

// One rank's end. Used by one thread.
class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // A number a host: ranks with equal numbers share memory and fast links. Ranks of a host are consecutive.
  virtual int host(int rank) const = 0;

  // This rank's end of the group of `members` (world ranks, rising, this one among them). Every member calls it,
  // members of several groups in the same order; ranks outside do not call. It is connected and warm when it returns:
  // one small call of each kind has run, every pair of ranks included. `name` stands in errors.
  virtual std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> members) = 0;

  // Ends the job for all: calls that wait in any rank throw a Failure with `reason`. May be called from any thread.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace trireme::comm
