// Draft attention for any Vec. Included by row_avx2.cc and row_avx512.cc only.
#pragma once

#include <cstdint>

#include "ops/cpu/row_impl.h"
#include "ops/cpu/row_kernels.h"
#include "ops/cpu/vec_math.h"

namespace trireme::ops::cpu {

template <class V>
struct DraftImpl {
  static constexpr int64_t kLanes = V::kLanes;

  static void head(const DraftHead& h) {
    for (int64_t j = 0; j < h.count; j += 4) score4(h, j);
    RowImpl<V>::softmax(h.scores, h.count);
    int64_t i = 0;
    for (; i + 4 * kLanes <= h.dim; i += 4 * kLanes) mix<4>(h, i, kLanes);
    for (; i < h.dim; i += kLanes) mix<1>(h, i, h.dim - i < kLanes ? h.dim - i : kLanes);
  }

 private:
  // Four keys together hide the latency of additions; past the end the last key stands in. A score's arithmetic does
  // not depend on its neighbours.
  static void score4(const DraftHead& h, int64_t j) {
    const float* key[4];
    for (int64_t n = 0; n < 4; ++n) key[n] = h.keys[j + n < h.count ? j + n : h.count - 1];
    V acc[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for_vectors<V>(h.dim, [&](int64_t i, int64_t lanes) {
      const V q = load_lanes<V>(h.q + i, lanes);
      for (int n = 0; n < 4; ++n) acc[n] = fma(q, load_lanes<V>(key[n] + i, lanes), acc[n]);
    });
    for (int64_t n = 0; n < 4 && j + n < h.count; ++n) h.scores[j + n] = h.scale * sum(acc[n]);
  }

  // Columns [i, i + kVectors vectors) of the weighted sum of values; the last vector has `lanes` lanes.
  template <int kVectors>
  static void mix(const DraftHead& h, int64_t i, int64_t lanes) {
    V acc[kVectors];
    for (V& v : acc) v = V::zero();
    for (int64_t j = 0; j < h.count; ++j) {
      const V p = V::set(h.scores[j]);
      const float* value = h.values[j] + i;
      for (int n = 0; n < kVectors; ++n) {
        acc[n] = fma(p, load_lanes<V>(value + n * kLanes, n + 1 < kVectors ? kLanes : lanes), acc[n]);
      }
    }
    for (int n = 0; n < kVectors; ++n) {
      store_lanes(rounded_if(h.round, acc[n]), h.out + i + n * kLanes, n + 1 < kVectors ? kLanes : lanes);
    }
  }
};

}  // namespace trireme::ops::cpu
