// MLA kernels for any Vec. Included by row_avx2.cc and row_avx512.cc only.
//
// Lanes are (row, head) pairs. All lanes of a block read the same latent rows, so attention is two small matrix
// products a page: scores [keys][lanes] and ctx [lanes][columns]. Scores keep lanes in vector lanes: maxima,
// exponentials and sums are then element by element, and a lane can neither disturb another nor depend on which lanes
// it shares a vector with. Both products are float32 multiply-adds over a page widened to float32, in the order of
// columns and of keys, one chain each: the bits of a lane are the same in a block of one row and of many. (vdpbf16ps
// would be no gain: measured on an Emerald Rapids Xeon it does half as many multiply-adds a second as float32 does.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/cpu/row_kernels.h"
#include "ops/cpu/vec_math.h"
#include "ops/mla.h"

namespace trireme::ops::cpu {

// kStride: floats from row to row of the widened page; 0: only known at run time. Known, the addresses of the keys of a
// tile are one register and constants.
template <class V, int64_t kStride>
struct MlaPage {
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int64_t kTileColumns = 4 * kLanes;

  const MlaBlock& block;
  int64_t runtime_stride;
  int64_t lanes;      // padded
  int64_t columns;    // padded
  float* page;        // [kPageTokens][stride]
  float* scores;      // [kPageTokens][lanes]
  float* correction;  // [lanes]: what earlier sums are multiplied with
  bool fresh = true;  // no page was attended yet

  int64_t stride() const { return kStride != 0 ? kStride : runtime_stride; }

  // Widens the page's first `keys` rows.
  void widen(const std::byte* from, int64_t keys) const {
    const int64_t width = block.width;
    for (int64_t j = 0; j < keys; ++j) {
      float* to = page + j * stride();
      if (block.bf16_pages) {
        const auto* row = reinterpret_cast<const uint16_t*>(from) + j * width;
        for_vectors<V>(width, [&](int64_t i, int64_t n) {
          const V v = n == kLanes ? V::load_bf16(row + i) : V::load_bf16(row + i, n);
          v.store(to + i);
        });
      } else {
        const auto* row = reinterpret_cast<const float*>(from) + j * width;
        for_vectors<V>(width, [&](int64_t i, int64_t n) { load_lanes<V>(row + i, n).store(to + i); });
      }
    }
  }

  // Scores of kKeys keys for the kVectors vectors of lanes from `lane` on.
  template <int kKeys, int kVectors>
  void score_tile(const float* packed, int64_t key, int64_t lane) const {
    V acc[kKeys][kVectors];
    for (auto& row : acc) {
      for (V& v : row) v = V::zero();
    }
    const float* rows = page + key * stride();
    const float* q = packed + lane * block.width;
    const int64_t width = block.width;
    for (int64_t i = 0; i < width; ++i, q += kVectors * kLanes) {
      V query[kVectors];
      for (int n = 0; n < kVectors; ++n) query[n] = V::load(q + n * kLanes);
      for (int j = 0; j < kKeys; ++j) {
        const V element = V::set(rows[j * stride() + i]);
        for (int n = 0; n < kVectors; ++n) acc[j][n] = fma(element, query[n], acc[j][n]);
      }
    }
    for (int j = 0; j < kKeys; ++j) {
      for (int n = 0; n < kVectors; ++n) acc[j][n].store(scores + (key + j) * lanes + lane + n * kLanes);
    }
  }

  // Scores of the first `keys` keys (rounded up to whole tiles) for all vectors of lanes from that of `lane_begin` on.
  void score(const float* packed, int64_t keys, int64_t lane_begin) const {
    constexpr int kPair = V::kRegisters / 4;  // keys a tile of two vectors
    for (int64_t lane = lane_begin / (2 * kLanes) * (2 * kLanes); lane < lanes; lane += 2 * kLanes) {
      if (lane + kLanes < lanes) {
        for (int64_t key = 0; key < keys; key += kPair) score_tile<kPair, 2>(packed, key, lane);
      } else {
        for (int64_t key = 0; key < keys; key += 2 * kPair) score_tile<2 * kPair, 1>(packed, key, lane);
      }
    }
  }

  // Turns the scores of `keys` keys and one vector of lanes into weights exp(s - max), updates maximum and sum, and
  // leaves the correction. `visible` [kLanes]: keys that each lane sees, where not all see the whole page.
  void softmax_lanes(int64_t lane, int64_t keys, const float* visible, const MlaPartial& partial) const {
    const V scale = V::set(block.scale);
    const V infinity = V::set(std::numeric_limits<float>::infinity());
    const V before = V::load(partial.max + lane);
    const V limit = visible != nullptr ? V::load(visible) : infinity;
    V top = before;
    for (int64_t j = 0; j < keys; ++j) {
      V s = V::load(scores + j * lanes + lane) * scale;
      s = select_less(V::set(static_cast<float>(j)), limit, s, V::zero() - infinity);
      s.store(scores + j * lanes + lane);
      top = max(s, top);  // a NaN score leaves it
    }
    top.store(partial.max + lane);
    const V shift = finite_or_zero(top);
    V total = V::zero();
    for (int64_t j = 0; j < keys; ++j) {
      const V p = vec_exp(V::load(scores + j * lanes + lane) - shift);
      total = total + p;
      rounded_if(block.round, p).store(scores + j * lanes + lane);
    }
    const V keep = vec_exp(before - shift);
    keep.store(correction + lane);
    fma(V::load(partial.sum + lane), keep, total).store(partial.sum + lane);
  }

  // Nothing seen yet (a maximum of -infinity) must give weights of zero, not of NaN.
  static V finite_or_zero(V top) {
    return select_less(top, V::set(-std::numeric_limits<float>::max()), V::zero(), top);
  }

  // ctx = correction * ctx + weights * page for kCount lanes, kTileColumns columns and the first `keys` keys; without
  // the old ctx in the first page.
  template <int kCount>
  void sum_tile(int64_t lane, int64_t column, int64_t keys, float* ctx) const {
    V acc[kCount][4];
    float* const to = ctx + lane * columns + column;
    for (int m = 0; m < kCount; ++m) {
      const V keep = V::set(correction[lane + m]);
      for (int n = 0; n < 4; ++n) acc[m][n] = fresh ? V::zero() : V::load(to + m * columns + n * kLanes) * keep;
    }
    const float* p = scores + lane;
    const float* v = page + column;
    for (int64_t j = 0; j < keys; ++j, p += lanes, v += stride()) {
      V value[4];
      for (int n = 0; n < 4; ++n) value[n] = V::load(v + n * kLanes);
      for (int m = 0; m < kCount; ++m) {
        const V weight = V::set(p[m]);
        for (int n = 0; n < 4; ++n) acc[m][n] = fma(weight, value[n], acc[m][n]);
      }
    }
    for (int m = 0; m < kCount; ++m) {
      for (int n = 0; n < 4; ++n) acc[m][n].store(to + m * columns + n * kLanes);
    }
  }

  void sum_lanes(int64_t lane, int64_t count, int64_t column, int64_t keys, float* ctx) const {
    switch (count) {
      case 1:
        return sum_tile<1>(lane, column, keys, ctx);
      case 2:
        return sum_tile<2>(lane, column, keys, ctx);
      case 3:
        return sum_tile<3>(lane, column, keys, ctx);
      default:
        break;
    }
    if constexpr (V::kRegisters >= 32) {
      switch (count) {
        case 4:
          return sum_tile<4>(lane, column, keys, ctx);
        case 5:
          return sum_tile<5>(lane, column, keys, ctx);
        default:
          return sum_tile<6>(lane, column, keys, ctx);
      }
    }
  }

  // The weighted sum for lanes [begin, end), cut evenly into tiles that fit the registers.
  void sum_range(int64_t begin, int64_t end, int64_t keys, float* ctx) const {
    constexpr int64_t kMost = V::kRegisters >= 32 ? 6 : 3;
    const int64_t tiles = (end - begin + kMost - 1) / kMost;
    for (int64_t column = 0; column < columns; column += kTileColumns) {
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t from = begin + (end - begin) * t / tiles;
        const int64_t to = begin + (end - begin) * (t + 1) / tiles;
        sum_lanes(from, to - from, column, keys, ctx);
      }
    }
  }

  void attend(const float* packed, int64_t page_index, const MlaPartial& partial) const {
    // Row r sees the first seen(r) keys of this page, all of it if that is more.
    const auto seen = [&](int64_t row) { return block.visible(row) - page_index * kPageTokens; };
    const int64_t keys = smaller(seen(block.rows - 1), kPageTokens);
    int64_t row_begin = 0;
    while (seen(row_begin) <= 0) ++row_begin;
    const bool whole = seen(0) >= kPageTokens;
    widen(block.pages + block.page_table[page_index] * block.page_bytes, keys);
    score(packed, keys, row_begin * block.heads);
    const int64_t first_lane = row_begin * block.heads / kLanes * kLanes;
    for (int64_t lane = first_lane; lane < lanes; lane += kLanes) {
      float visible[kLanes];
      for (int64_t i = 0; i < kLanes && !whole; ++i) visible[i] = static_cast<float>(seen((lane + i) / block.heads));
      softmax_lanes(lane, keys, whole ? nullptr : visible, partial);
    }
    if (whole) return sum_range(0, block.rows * block.heads, kPageTokens, partial.ctx);
    // Keys that a row does not see must not touch its sums, not even multiplied with zero: they may be NaN.
    for (int64_t r = row_begin; r < block.rows; ++r) {
      sum_range(r * block.heads, (r + 1) * block.heads, smaller(seen(r), kPageTokens), partial.ctx);
    }
  }

  static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
};

template <class V>
struct MlaImpl {
  static constexpr int64_t kLanes = V::kLanes;
  // An odd number of cache lines, so that a column of rows spreads over all cache sets; enough for K3's width of 576.
  static constexpr int64_t kUsualStride = 592;

  static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
  static int64_t padded_lanes(int64_t lanes) { return round_up(lanes, kLanes); }
  static int64_t padded_columns(int64_t latent) { return round_up(latent, 4 * kLanes); }
  static int64_t lanes_of(const MlaBlock& b) { return padded_lanes(b.rows * b.heads); }
  static int64_t stride_of(const MlaBlock& b) {
    const int64_t needed =
        padded_columns(b.latent) > round_up(b.width, kLanes) ? padded_columns(b.latent) : round_up(b.width, kLanes);
    return needed <= kUsualStride ? kUsualStride : round_up(needed, 32) + 16;
  }

  static int64_t packed_floats(const MlaBlock& b) { return lanes_of(b) * b.width; }
  static int64_t scratch_floats(const MlaBlock& b) { return kPageTokens * (stride_of(b) + lanes_of(b)) + lanes_of(b); }

  // Tiles of two vectors of lanes (the last may be one): [width][lanes of the tile].
  static void pack_queries(const MlaBlock& b, float* packed) {
    const int64_t lanes = lanes_of(b);
    for (int64_t lane = 0; lane < lanes; lane += kLanes) {
      const int64_t tile = lane / (2 * kLanes) * (2 * kLanes);
      const int64_t step = lanes - tile < 2 * kLanes ? kLanes : 2 * kLanes;
      pack_vector(b, lane, step, packed + tile * b.width + (lane - tile));
    }
  }

  // Column i of the lanes [lane, lane + kLanes) goes to to + i * step; lanes past the last are zeros.
  static void pack_vector(const MlaBlock& b, int64_t lane, int64_t step, float* to) {
    const int64_t last = b.rows * b.heads;
    for_vectors<V>(b.width, [&](int64_t i, int64_t n) {
      V square[kLanes];
      for (int64_t m = 0; m < kLanes; ++m) {
        const int64_t at = lane + m;
        square[m] =
            at < last ? load_lanes<V>(b.q + at / b.heads * b.q_stride + at % b.heads * b.width + i, n) : V::zero();
      }
      V::transpose(square);
      for (int64_t m = 0; m < n; ++m) square[m].store(to + (i + m) * step);
    });
  }

  template <class Page>
  static void attend_pages(Page page, const float* packed, int64_t page_begin, int64_t page_end,
                           const MlaPartial& partial) {
    // A row that sees any page of the range sees its first one, so all sums begin there.
    for (int64_t p = page_begin; p < page_end; ++p) {
      page.fresh = p == page_begin;
      page.attend(packed, p, partial);
    }
  }

  static void pages(const MlaBlock& b, const float* packed, int64_t page_begin, int64_t page_end, float* scratch,
                    const MlaPartial& partial) {
    const int64_t lanes = lanes_of(b);
    const int64_t columns = padded_columns(b.latent);
    for (int64_t i = 0; i < lanes; ++i) {
      partial.max[i] = -std::numeric_limits<float>::infinity();
      partial.sum[i] = 0;
    }
    const int64_t stride = stride_of(b);
    float* scores = scratch + kPageTokens * stride;
    float* correction = scores + kPageTokens * lanes;
    if (stride == kUsualStride) {
      attend_pages(MlaPage<V, kUsualStride>{b, stride, lanes, columns, scratch, scores, correction}, packed, page_begin,
                   page_end, partial);
    } else {
      attend_pages(MlaPage<V, 0>{b, stride, lanes, columns, scratch, scores, correction}, packed, page_begin, page_end,
                   partial);
    }
  }

  static void merge(const MlaBlock& b, int64_t row_begin, const MlaPartial& into, const MlaPartial& part) {
    const int64_t lanes = lanes_of(b);
    const int64_t columns = padded_columns(b.latent);
    for (int64_t i = row_begin * b.heads / kLanes * kLanes; i < lanes; i += kLanes) {
      const V old_max = V::load(into.max + i), part_max = V::load(part.max + i);
      const V top = max(old_max, part_max);
      const V shift = MlaPage<V, 0>::finite_or_zero(top);
      const V keep = vec_exp(old_max - shift), take = vec_exp(part_max - shift);
      fma(V::load(part.sum + i), take, V::load(into.sum + i) * keep).store(into.sum + i);
      top.store(into.max + i);
      keep.store(part.sum + i);
      take.store(part.max + i);
    }
    for (int64_t lane = row_begin * b.heads; lane < b.rows * b.heads; ++lane) {
      const V keep = V::set(part.sum[lane]), take = V::set(part.max[lane]);
      float* to = into.ctx + lane * columns;
      const float* from = part.ctx + lane * columns;
      for (int64_t i = 0; i < columns; i += kLanes) fma(V::load(from + i), take, V::load(to + i) * keep).store(to + i);
    }
  }

  static void finish(const MlaBlock& b, const MlaPartial& partial, float* out, int64_t out_stride) {
    const int64_t columns = padded_columns(b.latent);
    for (int64_t lane = 0; lane < b.rows * b.heads; ++lane) {
      float* to = out + lane / b.heads * out_stride + lane % b.heads * b.latent;
      if (b.visible(lane / b.heads) == 0) {
        for_vectors<V>(b.latent, [&](int64_t i, int64_t n) { store_lanes(V::zero(), to + i, n); });
        continue;
      }
      const V inverse = V::set(1.0F) / V::set(partial.sum[lane]);
      const float* from = partial.ctx + lane * columns;
      for_vectors<V>(b.latent, [&](int64_t i, int64_t n) {
        store_lanes(rounded_if(b.round, load_lanes<V>(from + i, n) * inverse), to + i, n);
      });
    }
  }
};

}  // namespace trireme::ops::cpu
