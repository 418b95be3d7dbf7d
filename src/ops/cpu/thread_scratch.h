// Working memory of the calling thread, kept from call to call: allocating some hundred kilobytes anew in every
// operation would cost page faults comparable to a decode step's work.
#pragma once

#include <cstdint>

#include "tensor/buffer.h"

namespace trireme::ops::cpu {

// Who uses it: the body of a parallel loop, or the function that runs the loop (whose memory the bodies share).
enum class ScratchUse : uint8_t { body, caller };

// At least `floats` floats, 64-byte aligned, with any content. Valid until the same thread asks for the same use again.
template <ScratchUse kUse>
float* thread_scratch(int64_t floats) {
  thread_local Buffer buffer;
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (buffer.bytes() < bytes) {
    buffer = Buffer();  // the old memory goes first
    buffer = Buffer(bytes);
  }
  return buffer.as<float>().data();
}

}  // namespace trireme::ops::cpu
