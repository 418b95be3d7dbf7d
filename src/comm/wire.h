// Rows of floats as they travel: row after row without gaps, each element float32 or bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "tensor/matrix.h"

namespace trireme::comm {

inline int64_t element_bytes(Wire wire) { return wire == Wire::bf16 ? 2 : 4; }
inline int64_t wire_bytes(ConstRows rows, Wire wire) { return rows.rows * rows.cols * element_bytes(wire); }

// True if the rows' own memory already is their wire form.
inline bool travels_in_place(ConstRows rows, Wire wire) {
  return wire == Wire::f32 && (rows.stride == rows.cols || rows.rows <= 1);
}

// `to` and `from` hold wire_bytes() bytes, aligned for their elements.
void pack(ConstRows rows, Wire wire, std::byte* to);
void unpack(const std::byte* from, Rows rows, Wire wire);
// to = from, rounded for the wire; they may be the same memory.
void copy_rows(ConstRows from, Rows to, Wire wire);
// sum = block 0 + block 1 + ... in float32, in this order; `blocks` are `count` wire forms of sum's shape.
void sum_blocks(const std::byte* blocks, int count, Rows sum, Wire wire);

}  // namespace trireme::comm
