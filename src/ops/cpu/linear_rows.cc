#include "ops/cpu/linear_rows.h"

#include <xmmintrin.h>

#include <algorithm>

namespace trireme::ops::cpu {
namespace {

// Four rows as columns [0, 4) of `out`, whose rows are `height` long.
void transpose_four(const float* const* rows, int64_t inputs, int64_t height, float* out) {
  int64_t k = 0;
  for (; k + 4 <= inputs; k += 4) {
    __m128 a = _mm_loadu_ps(rows[0] + k);
    __m128 b = _mm_loadu_ps(rows[1] + k);
    __m128 c = _mm_loadu_ps(rows[2] + k);
    __m128 d = _mm_loadu_ps(rows[3] + k);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(out + k * height, a);
    _mm_storeu_ps(out + (k + 1) * height, b);
    _mm_storeu_ps(out + (k + 2) * height, c);
    _mm_storeu_ps(out + (k + 3) * height, d);
  }
  for (; k < inputs; ++k) {
    for (int64_t r = 0; r < 4; ++r) out[k * height + r] = rows[r][k];
  }
}

}  // namespace

void pack_row_tile(const float* const* rows, int64_t count, int64_t inputs, int64_t height, float* tile) {
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) transpose_four(rows + r, inputs, height, tile + r);
  for (; r < count; ++r) {
    for (int64_t k = 0; k < inputs; ++k) tile[k * height + r] = rows[r][k];
  }
  for (; r < height; ++r) {
    for (int64_t k = 0; k < inputs; ++k) tile[k * height + r] = 0;
  }
}

}  // namespace trireme::ops::cpu
