// The memory of KDA states: slots, each with the recurrent and the convolution state of every KDA layer.
#pragma once

#include <cstdint>

#include "cache/id_pool.h"
#include "checkpoint/config.h"
#include "ledger/ledger.h"

namespace trireme::cache {

// Memory is [layer][slot]{recurrent [heads][key][value], convolution [taps - 1][3 * heads * dim]} float32, from the
// ledger line "pool.kda_state".
class KdaCache {
 public:
  // Throws Failure if the ledger planned other than `slots` slots.
  KdaCache(const checkpoint::ModelConfig& config, int64_t slots, ledger::Account& account);

  int64_t layers() const { return layers_; }
  // Slot 0 of KDA layer `index`, counted among the KDA layers; slot s is s * stride() floats further on. Valid as long
  // as the cache.
  float* recurrent(int64_t index);
  float* conv(int64_t index);
  // Floats from a slot to the next, for both states.
  int64_t stride() const { return recurrent_floats_ + conv_floats_; }

  IdPool& slots() { return slots_; }
  const IdPool& slots() const { return slots_; }

 private:
  int64_t layers_ = 0;
  int64_t recurrent_floats_ = 0;
  int64_t conv_floats_ = 0;
  IdPool slots_;
  Buffer memory_;
};

}  // namespace trireme::cache
