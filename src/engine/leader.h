// Steps of an instance, led by rank 0: it says what every attention group runs and gets the logits back. The others
// follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/rank.h"

namespace trireme::engine {

// On rank 0. One thread at a time.
class Leader {
 public:
  explicit Leader(Rank& rank) : rank_(rank) {}
  // The followers end.
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Rank& rank() { return rank_; }
  int64_t groups() const { return rank_.instance().dp; }

  // Runs one batch a group (empty: it has nothing to do) on all ranks; returns the logits of each batch's wanted rows,
  // all segments committed. Throws what this rank's part throws, a Failure if another rank failed: then the instance is
  // lost.
  std::vector<Matrix> step(std::span<const model::Batch> batches);

 private:
  Rank& rank_;
  bool failed_ = false;  // a step threw: nobody follows any more
};

// On every other rank: takes part in the leader's steps until it ends.
void follow(Rank& rank);

// The batches as numbers, for the wire, and back. Throws Failure for numbers that are no batches.
std::vector<int64_t> encode_batches(std::span<const model::Batch> batches);
std::vector<model::Batch> decode_batches(std::span<const int64_t> numbers);

}  // namespace trireme::engine
