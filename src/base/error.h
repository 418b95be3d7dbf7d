// The two ways a call can fail. Messages are one line: what is wrong, where, and what would be right.
#pragma once

#include <stdexcept>
#include <string>

namespace trireme {

// The caller gave something wrong: a file, a flag, a request. The command line ends with status 2, the server answers
// 400.
class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The input was right and something else failed: a disk, a socket, memory. Status 1, or 500.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace trireme
