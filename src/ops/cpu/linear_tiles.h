// The float32 kernels, written once over a vector class `Isa` (linear_avx2.cc, linear_avx512.cc). Every template here
// takes a class of an anonymous namespace, so that each file keeps its own copies: code of one instruction set must
// never be linked into another's. For the same reason nothing of the standard library is called.
//
// Isa: V (16 floats), Raw (64 bytes); load, store, broadcast, zero, fma, mul, store_part, round_bf16, load_raw, and the
// decoders f32, bf16<U>, fp8<U>, mx<U>, fp8_scale, mx_scale; kHeights (tile heights, rising) and width(height) (panels
// that a tile spans).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_layout.h"
#include "ops/cpu/linear_rows.h"

namespace trireme::ops::cpu {

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};

// body(Index<0>) ... body(Index<kCount - 1>), unrolled.
template <int kCount, class Body, int kFrom = 0>
[[gnu::always_inline]] inline void unroll(const Body& body) {
  if constexpr (kFrom < kCount) {
    body(Index<kFrom>{});
    unroll<kCount, Body, kFrom + 1>(body);
  }
}

// ---- codecs: how a group of 64 bytes becomes kInputs vectors of weights

template <class Isa>
struct F32Codec {
  static constexpr int64_t kInputs = 1;
  static constexpr int64_t kBlock = 0;  // no scales
  struct Scale {};
  static Scale scale(const std::byte*, int64_t) { return {}; }
  template <int U>
  [[gnu::always_inline]] static typename Isa::V decode(const typename Isa::Raw& raw, const Scale&) {
    return Isa::f32(raw);
  }
};

template <class Isa>
struct Bf16Codec {
  static constexpr int64_t kInputs = 2;
  static constexpr int64_t kBlock = 0;
  struct Scale {};
  static Scale scale(const std::byte*, int64_t) { return {}; }
  template <int U>
  [[gnu::always_inline]] static typename Isa::V decode(const typename Isa::Raw& raw, const Scale&) {
    return Isa::template bf16<U>(raw);
  }
};

template <class Isa>
struct Fp8Codec {
  static constexpr int64_t kInputs = 4;
  static constexpr int64_t kBlock = kFp8Block;
  using Scale = typename Isa::V;
  [[gnu::always_inline]] static Scale scale(const std::byte* scales, int64_t block) {
    return Isa::load(reinterpret_cast<const float*>(scales) + block * kPanelOutputs);
  }
  template <int U>
  [[gnu::always_inline]] static typename Isa::V decode(const typename Isa::Raw& raw, const Scale& scale) {
    return Isa::mul(Isa::template fp8<U>(raw), scale);
  }
};

template <class Isa>
struct MxCodec {
  static constexpr int64_t kInputs = 8;
  static constexpr int64_t kBlock = kMxBlock;
  using Scale = typename Isa::V;
  [[gnu::always_inline]] static Scale scale(const std::byte* scales, int64_t block) {
    return Isa::mx_scale(scales + block * kPanelOutputs);
  }
  template <int U>
  [[gnu::always_inline]] static typename Isa::V decode(const typename Isa::Raw& raw, const Scale& scale) {
    return Isa::mul(Isa::template mx<U>(raw), scale);
  }
};

// ---- one tile: kHeight rows by kWidth panels

struct TileArgs {
  const std::byte* panel = nullptr;
  int64_t panel_bytes = 0;
  int64_t codes_bytes = 0;
  int64_t inputs = 0;
  const float* rows = nullptr;  // [inputs][height]
  int64_t row_count = 0;        // <= height
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t outputs = 0;  // that exist in these panels
  bool round = false;
  // Long chains are run in pieces: from sums where the last piece left off, unless this is the first one, and into sums
  // unless it is the last one. [height][sums_stride]; null: the chain is run whole.
  float* sums = nullptr;
  int64_t sums_stride = 0;
  bool first = true;
  bool last = true;
};

template <class Isa, class Codec, int kHeight, int kWidth>
struct Tile {
  using V = typename Isa::V;
  using Scales = typename Codec::Scale[kWidth];

  V acc[kHeight][kWidth];

  // Adds the first `count` inputs of one group.
  template <bool kWhole>
  [[gnu::always_inline]] void add_group(const TileArgs& t, const Scales& scales, int64_t group, const float* x,
                                        int64_t count) {
    typename Isa::Raw raw[kWidth];
    unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
      raw[n.value] = Isa::load_raw(t.panel + n.value * t.panel_bytes + group * kGroupBytes);
    });
    unroll<Codec::kInputs>([&](auto u) __attribute__((always_inline)) {
      if (!kWhole && u.value >= count) return;
      V weights[kWidth];
      unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
        weights[n.value] = Codec::template decode<decltype(u)::value>(raw[n.value], scales[n.value]);
      });
      unroll<kHeight>([&](auto r) __attribute__((always_inline)) {
        const V value = Isa::broadcast(x + u.value * kHeight + r.value);
        unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
          acc[r.value][n.value] = Isa::fma(weights[n.value], value, acc[r.value][n.value]);
        });
      });
    });
  }

  // Asks for the lines that are read kAhead bytes later: of these panels, then of the ones after them.
  [[gnu::always_inline]] void prefetch(const TileArgs& t, int64_t group) const {
    constexpr int64_t kAhead = 1024;
    int64_t offset = group * kGroupBytes + kAhead;
    if (offset >= t.panel_bytes) offset += (kWidth - 1) * t.panel_bytes;
    unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
      __builtin_prefetch(t.panel + n.value * t.panel_bytes + offset);
    });
  }

  [[gnu::always_inline]] void add_block(const TileArgs& t, int64_t block, int64_t begin, int64_t end) {
    constexpr int64_t kInputs = Codec::kInputs;
    Scales scales;
    unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
      scales[n.value] = Codec::scale(t.panel + n.value * t.panel_bytes + t.codes_bytes, block);
    });
    int64_t k = begin;
    for (; k + kInputs <= end; k += kInputs) {
      prefetch(t, k / kInputs);
      add_group<true>(t, scales, k / kInputs, t.rows + k * kHeight, kInputs);
    }
    if constexpr (kInputs > 1) {
      if (k < end) add_group<false>(t, scales, k / kInputs, t.rows + k * kHeight, end - k);
    }
  }

  [[gnu::always_inline]] void store(const TileArgs& t) const {
    unroll<kHeight>([&](auto r) __attribute__((always_inline)) {
      if (r.value >= t.row_count) return;
      unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
        const int64_t first = n.value * kPanelOutputs;
        const V value = t.round ? Isa::round_bf16(acc[r.value][n.value]) : acc[r.value][n.value];
        float* y = t.y + r.value * t.y_stride + first;
        if (t.outputs - first >= kPanelOutputs) {
          Isa::store(y, value);
        } else {
          Isa::store_part(y, value, t.outputs - first);
        }
      });
    });
  }

  [[gnu::always_inline]] void begin(const TileArgs& t) {
    unroll<kHeight>([&](auto r) __attribute__((always_inline)) {
      unroll<kWidth>([&](auto n) __attribute__((always_inline)) { acc[r.value][n.value] = Isa::zero(); });
    });
    if (t.first) return;
    unroll<kHeight>([&](auto r) __attribute__((always_inline)) {
      unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
        acc[r.value][n.value] = Isa::load(t.sums + r.value * t.sums_stride + n.value * kPanelOutputs);
      });
    });
  }

  [[gnu::always_inline]] void end(const TileArgs& t) const {
    if (t.last) return store(t);
    unroll<kHeight>([&](auto r) __attribute__((always_inline)) {
      unroll<kWidth>([&](auto n) __attribute__((always_inline)) {
        Isa::store(t.sums + r.value * t.sums_stride + n.value * kPanelOutputs, acc[r.value][n.value]);
      });
    });
  }

  static void run(const TileArgs& t) {
    Tile tile;
    tile.begin(t);
    if constexpr (Codec::kBlock == 0) {
      tile.add_block(t, 0, 0, t.inputs);
    } else {
      for (int64_t k = 0; k < t.inputs; k += Codec::kBlock) {
        const int64_t end = k + Codec::kBlock < t.inputs ? k + Codec::kBlock : t.inputs;
        tile.add_block(t, k / Codec::kBlock, k, end);
      }
    }
    tile.end(t);
  }
};

// ---- rows and panels that do not divide

// The lowest tile height that holds `rows`.
template <class Isa>
int64_t tile_height(int64_t rows) {
  for (const int h : Isa::kHeights) {
    if (rows <= h) return h;
  }
  return Isa::kMaxHeight;
}

template <class Isa, class Codec, int kHeight, int kWidth>
void strip(TileArgs t, int64_t panels) {
  for (; panels >= kWidth; panels -= kWidth) {
    Tile<Isa, Codec, kHeight, kWidth>::run(t);
    t.panel += kWidth * t.panel_bytes;
    t.y += kWidth * kPanelOutputs;
    t.sums += t.sums == nullptr ? 0 : kWidth * kPanelOutputs;
    t.outputs -= kWidth * kPanelOutputs;
  }
  if constexpr (kWidth > 1) {
    if (panels > 0) strip<Isa, Codec, kHeight, kWidth / 2>(t, panels);
  }
}

// All of `panels` for one row tile.
template <class Isa, class Codec, int kAt = 0>
void strip_of_height(const TileArgs& t, int64_t height, int64_t panels) {
  constexpr int kHeight = Isa::kHeights[kAt];
  if constexpr (kHeight == Isa::kMaxHeight) {
    strip<Isa, Codec, kHeight, Isa::width(kHeight)>(t, panels);
  } else if (height == kHeight) {
    strip<Isa, Codec, kHeight, Isa::width(kHeight)>(t, panels);
  } else {
    strip_of_height<Isa, Codec, kAt + 1>(t, height, panels);
  }
}

// A panel's weights of inputs [begin, end) as float32, [end - begin][16]; begin is a multiple of the codec's block.
template <class Isa, class Codec>
void decode_panel(const std::byte* panel, int64_t codes_bytes, int64_t begin, int64_t end, float* out) {
  constexpr int64_t kInputs = Codec::kInputs;
  constexpr int64_t kBlock = Codec::kBlock;
  for (int64_t block = begin; block < end; block += kBlock) {
    const typename Codec::Scale scale = Codec::scale(panel + codes_bytes, block / kBlock);
    const int64_t block_end = block + kBlock < end ? block + kBlock : end;
    for (int64_t k = block; k < block_end; k += kInputs) {
      const std::byte* group = panel + k / kInputs * kGroupBytes;
      __builtin_prefetch(group + 1024);
      const typename Isa::Raw raw = Isa::load_raw(group);
      unroll<kInputs>([&](auto u) __attribute__((always_inline)) {
        Isa::store(out + (k - begin + u.value) * kPanelOutputs, Codec::template decode<decltype(u)::value>(raw, scale));
      });
    }
  }
}

// ---- LinearPath

template <class Isa>
int64_t rows_bytes(int64_t count, int64_t inputs) {
  const int64_t whole = count / Isa::kMaxHeight * Isa::kMaxHeight;
  const int64_t rest = count - whole;
  return (whole + (rest > 0 ? tile_height<Isa>(rest) : 0)) * inputs * 4;
}

template <class Isa>
void pack_rows(const float* const* rows, int64_t count, int64_t inputs, int64_t tile_begin, int64_t tile_end,
               void* out) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first = tile * Isa::kMaxHeight;
    const int64_t rest = count - first < Isa::kMaxHeight ? count - first : Isa::kMaxHeight;
    pack_row_tile(rows + first, rest, inputs, tile_height<Isa>(rest), static_cast<float*>(out) + first * inputs);
  }
}

template <class Isa>
TileArgs tile_args(const LinearJob& job, int64_t tile, int64_t panel) {
  const int64_t first = tile * Isa::kMaxHeight;
  TileArgs t;
  t.inputs = job.inputs;
  t.rows = static_cast<const float*>(job.rows) + first * job.inputs;
  t.row_count = job.row_count - first < Isa::kMaxHeight ? job.row_count - first : Isa::kMaxHeight;
  t.y = job.y + first * job.y_stride + panel * kPanelOutputs;
  t.y_stride = job.y_stride;
  t.outputs = job.outputs - panel * kPanelOutputs;
  t.round = job.round;
  t.panel = job.panels + panel * job.layout.panel_bytes;
  t.panel_bytes = job.layout.panel_bytes;
  t.codes_bytes = job.layout.codes_bytes;
  return t;
}

// One row tile: weights are read once, straight from the panels, by chains run whole.
template <class Isa, class Codec>
void multiply_low(const LinearJob& job, int64_t panel_begin, int64_t panel_end) {
  const TileArgs t = tile_args<Isa>(job, 0, panel_begin);
  strip_of_height<Isa, Codec>(t, tile_height<Isa>(t.row_count), panel_end - panel_begin);
}

// Several row tiles: blocks of a few panels, some inputs and some tiles, so that what a block passes over again and
// again stays in cache: the tiles' rows (at most 132 * 512 floats, a quarter of a megabyte) in the second level and two
// panels' weights (32 KB) in the first. Codes of less than 16 bits are decoded to float32 once for all tiles of a
// block.
template <class Codec>
inline constexpr bool kDecodes = Codec::kInputs > 2;
inline constexpr int64_t kDecodedInputs = 256;
template <class Codec>
inline constexpr int64_t kBlockInputs = kDecodes<Codec> ? kDecodedInputs : 512;
inline constexpr int64_t kBlockPanels = 8;
template <class Isa>
inline constexpr int64_t kBlockTiles = 132 / Isa::kMaxHeight;
inline constexpr int64_t kSumsStride = kBlockPanels * kPanelOutputs;
template <class Isa>
inline constexpr int64_t kDecodedFloats = Isa::width(Isa::kMaxHeight) * kDecodedInputs* kPanelOutputs;

// Room for decoded weights and for the sums of a block between its pieces.
template <class Isa>
int64_t scratch_bytes(const LinearJob& job) {
  if (job.row_count <= Isa::kMaxHeight) return 0;
  const int64_t tiles = (job.row_count + Isa::kMaxHeight - 1) / Isa::kMaxHeight;
  const int64_t block_tiles = tiles < kBlockTiles<Isa> ? tiles : kBlockTiles<Isa>;
  return (kDecodedFloats<Isa> + block_tiles * Isa::kMaxHeight * kSumsStride) * 4;
}

struct Block {
  int64_t tile_begin, tile_end;
  int64_t panel_begin, panel_end;
};

// Inputs [k_begin, k_end) of a block, for `count` panels from `panel`.
template <class Isa, class Codec>
void multiply_piece(const LinearJob& job, const Block& block, int64_t panel, int64_t count, int64_t k_begin,
                    int64_t k_end, float* decoded, float* sums) {
  using TileCodec = std::conditional_t<kDecodes<Codec>, F32Codec<Isa>, Codec>;
  if constexpr (kDecodes<Codec>) {
    for (int64_t n = 0; n < count; ++n) {
      const std::byte* packed = job.panels + (panel + n) * job.layout.panel_bytes;
      decode_panel<Isa, Codec>(packed, job.layout.codes_bytes, k_begin, k_end,
                               decoded + n * kDecodedInputs * kPanelOutputs);
    }
  }
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    TileArgs t = tile_args<Isa>(job, tile, panel);
    const int64_t height = tile_height<Isa>(t.row_count);
    t.inputs = k_end - k_begin;
    t.rows += k_begin * height;
    if constexpr (kDecodes<Codec>) {
      t.panel = reinterpret_cast<const std::byte*>(decoded);
      t.panel_bytes = kDecodedInputs * kPanelOutputs * 4;
    } else {
      t.panel += k_begin / Codec::kInputs * kGroupBytes;
    }
    t.first = k_begin == 0;
    t.last = k_end == job.inputs;
    t.sums =
        sums + (tile - block.tile_begin) * Isa::kMaxHeight * kSumsStride + (panel - block.panel_begin) * kPanelOutputs;
    t.sums_stride = kSumsStride;
    strip_of_height<Isa, TileCodec>(t, height, count);
  }
}

template <class Isa, class Codec>
void multiply_block(const LinearJob& job, const Block& block, float* scratch) {
  constexpr int64_t kStep = Isa::width(Isa::kMaxHeight);
  constexpr int64_t kPiece = kBlockInputs<Codec>;
  float* sums = scratch + kDecodedFloats<Isa>;
  for (int64_t k = 0; k < job.inputs; k += kPiece) {
    const int64_t k_end = k + kPiece < job.inputs ? k + kPiece : job.inputs;
    for (int64_t panel = block.panel_begin; panel < block.panel_end; panel += kStep) {
      const int64_t count = block.panel_end - panel < kStep ? block.panel_end - panel : kStep;
      multiply_piece<Isa, Codec>(job, block, panel, count, k, k_end, scratch, sums);
    }
  }
}

template <class Isa, class Codec>
void multiply_format(const LinearJob& job, int64_t tile_begin, int64_t tile_end, int64_t panel_begin, int64_t panel_end,
                     std::byte* scratch) {
  if (job.row_count <= Isa::kMaxHeight) return multiply_low<Isa, Codec>(job, panel_begin, panel_end);
  for (int64_t tile = tile_begin; tile < tile_end; tile += kBlockTiles<Isa>) {
    for (int64_t panel = panel_begin; panel < panel_end; panel += kBlockPanels) {
      const Block block = {tile, tile + kBlockTiles<Isa> < tile_end ? tile + kBlockTiles<Isa> : tile_end, panel,
                           panel + kBlockPanels < panel_end ? panel + kBlockPanels : panel_end};
      multiply_block<Isa, Codec>(job, block, reinterpret_cast<float*>(scratch));
    }
  }
}

template <class Isa>
void multiply(const LinearJob& job, int64_t tile_begin, int64_t tile_end, int64_t panel_begin, int64_t panel_end,
              std::byte* scratch) {
  if (tile_begin >= tile_end) return;
  switch (job.format) {
    case WeightFormat::f16:  // packed as f32
    case WeightFormat::f32:
      return multiply_format<Isa, F32Codec<Isa>>(job, tile_begin, tile_end, panel_begin, panel_end, scratch);
    case WeightFormat::bf16:
      return multiply_format<Isa, Bf16Codec<Isa>>(job, tile_begin, tile_end, panel_begin, panel_end, scratch);
    case WeightFormat::fp8_block:
      return multiply_format<Isa, Fp8Codec<Isa>>(job, tile_begin, tile_end, panel_begin, panel_end, scratch);
    case WeightFormat::mxfp4:
      return multiply_format<Isa, MxCodec<Isa>>(job, tile_begin, tile_end, panel_begin, panel_end, scratch);
  }
}

template <class Isa>
constexpr LinearPath float_path() {
  return {Isa::kMaxHeight, Isa::width(1), true, rows_bytes<Isa>, pack_rows<Isa>, scratch_bytes<Isa>, multiply<Isa>};
}

}  // namespace trireme::ops::cpu
