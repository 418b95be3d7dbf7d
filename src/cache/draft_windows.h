// The memory of a draft's context: for every slot, keys and values of the last tokens, for every layer of the draft.
#pragma once

#include <cstdint>

#include "ledger/ledger.h"

namespace trireme::cache {

// A window has the number of the KDA slot of its request, so it needs no allocator of its own. Memory is
// [slot][layer]{keys [rows][width], values [rows][width]} float32 from the ledger line "pool.draft_windows".
class DraftWindows {
 public:
  // `rows` of `width` floats a layer. Throws Failure if the ledger planned another size.
  DraftWindows(int64_t slots, int64_t layers, int64_t rows, int64_t width, ledger::Account& account);

  int64_t layers() const { return layers_; }
  int64_t rows() const { return rows_; }
  float* keys(int64_t slot, int64_t layer) {
    return memory_.as<float>().data() + (slot * layers_ + layer) * 2 * rows_ * width_;
  }
  float* values(int64_t slot, int64_t layer) { return keys(slot, layer) + rows_ * width_; }

 private:
  int64_t layers_ = 0;
  int64_t rows_ = 0;
  int64_t width_ = 0;
  Buffer memory_;
};

}  // namespace trireme::cache
