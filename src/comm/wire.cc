#include "comm/wire.h"

#include <cstring>

#include "base/numeric.h"

namespace trireme::comm {
namespace {

// The loops below are plain ones over one row, which the compiler turns into vector code.

void encode(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = float_to_bf16(from[i]);
}

void decode(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = bf16_to_float(from[i]);
}

void add(const uint16_t* part, int64_t count, float* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += bf16_to_float(part[i]);
}

void add(const float* part, int64_t count, float* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
}

void copy(const void* from, int64_t floats, void* to) {
  if (floats > 0) std::memmove(to, from, static_cast<size_t>(floats) * sizeof(float));
}

const uint16_t* as_bf16(const std::byte* bytes) { return reinterpret_cast<const uint16_t*>(bytes); }
const float* as_f32(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

}  // namespace

void pack(ConstRows rows, Wire wire, std::byte* to) {
  const int64_t row_bytes = rows.cols * element_bytes(wire);
  for (int64_t r = 0; r < rows.rows; ++r, to += row_bytes) {
    if (wire == Wire::bf16) {
      encode(rows.row(r), rows.cols, reinterpret_cast<uint16_t*>(to));
    } else {
      copy(rows.row(r), rows.cols, to);
    }
  }
}

void unpack(const std::byte* from, Rows rows, Wire wire) {
  const int64_t row_bytes = rows.cols * element_bytes(wire);
  for (int64_t r = 0; r < rows.rows; ++r, from += row_bytes) {
    if (wire == Wire::bf16) {
      decode(as_bf16(from), rows.cols, rows.row(r));
    } else {
      copy(from, rows.cols, rows.row(r));
    }
  }
}

void copy_rows(ConstRows from, Rows to, Wire wire) {
  for (int64_t r = 0; r < from.rows; ++r) {
    copy(from.row(r), from.cols, to.row(r));
    if (wire == Wire::f32) continue;
    float* row = to.row(r);
    for (int64_t i = 0; i < to.cols; ++i) row[i] = round_to_bf16(row[i]);
  }
}

void sum_blocks(const std::byte* blocks, int count, Rows sum, Wire wire) {
  const int64_t row_bytes = sum.cols * element_bytes(wire);
  const int64_t block_bytes = sum.rows * row_bytes;
  // Row by row, so that the sums stay in the cache while the blocks stream through.
  for (int64_t r = 0; r < sum.rows; ++r) {
    for (int b = 0; b < count; ++b) {
      const std::byte* part = blocks + b * block_bytes + r * row_bytes;
      if (wire == Wire::bf16) {
        b == 0 ? decode(as_bf16(part), sum.cols, sum.row(r)) : add(as_bf16(part), sum.cols, sum.row(r));
      } else {
        b == 0 ? copy(part, sum.cols, sum.row(r)) : add(as_f32(part), sum.cols, sum.row(r));
      }
    }
  }
}

}  // namespace trireme::comm
