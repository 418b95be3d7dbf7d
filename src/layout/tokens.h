// Decode context parallel: where the latent row of a token lives. One copy of the formulas, for attention, caches and
// transfer alike. `part` is RankShare::tokens.
#pragma once

#include <cstdint>

#include "layout/share.h"

namespace trireme::layout {

// The rank of `count` that stores the token at this position of its request.
constexpr int64_t token_owner(int64_t position, int64_t count) { return position % count; }

// Its row among the rows that the owner stores of the request.
constexpr int64_t local_row(int64_t position, int64_t count) { return position / count; }

// The position of a rank's row: the inverse of the two above.
constexpr int64_t position_of(int64_t row, const Part& part) { return row * part.count + part.index; }

// How many of a request's first `length` tokens the rank stores: floor(L / c) + [index < L mod c].
constexpr int64_t local_length(int64_t length, const Part& part) {
  return length / part.count + (part.index < length % part.count ? 1 : 0);
}

}  // namespace trireme::layout
