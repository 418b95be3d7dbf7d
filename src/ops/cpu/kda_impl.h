// KDA kernels for any Vec. Included by row_avx2.cc and row_avx512.cc only.
#pragma once

#include <cstdint>

#include "ops/cpu/row_impl.h"
#include "ops/cpu/row_kernels.h"
#include "ops/cpu/vec_math.h"

namespace trireme::ops::cpu {

// The recurrence goes token by token in float32, in prefill and decode alike: that is what makes the bits independent
// of how a sequence is cut. One call covers a slice of value columns, whose part of the state stays in the level-1
// cache for all rows.
//
// One pass over the slice does the whole of a token: it applies the previous token's update, decays, and forms u = S'^T
// k and S'^T q of the decayed state S' together. The output follows without a second pass, since
//   o = (S' + k delta^T)^T q = S'^T q + (k . q) delta,   delta = beta (v - u).
template <class V, int kVectors, bool kFull>
struct KdaSlice {
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int64_t kWidth = 4 * kLanes;  // of a row of the scratch state, whatever kVectors is
  static constexpr int64_t kBlock = 16;          // rows whose decays are exponentiated together

  const KdaHead& head;
  int64_t column;
  int64_t tail;      // lanes of the last vector
  float* state;      // [dim][kWidth]: decayed for the current row, its update still to come
  float* decay;      // [kBlock][dim]
  float* key_query;  // [kBlock]

  struct Columns {
    V v[kVectors];
  };

  Columns load(const float* p) const {
    Columns c;
    for (int j = 0; j < kVectors; ++j) {
      c.v[j] = kFull || j + 1 < kVectors ? V::load(p + j * kLanes) : V::load(p + j * kLanes, tail);
    }
    return c;
  }
  void store(const Columns& c, float* p) const {
    for (int j = 0; j < kVectors; ++j) {
      if (kFull || j + 1 < kVectors) {
        c.v[j].store(p + j * kLanes);
      } else {
        c.v[j].store(p + j * kLanes, tail);
      }
    }
  }
  static Columns zero() {
    Columns c;
    for (V& v : c.v) v = V::zero();
    return c;
  }

  void prepare_block(int64_t begin) const {
    const int64_t end = begin + kBlock < head.rows ? begin + kBlock : head.rows;
    for (int64_t t = begin; t < end; ++t) {
      const float* g = head.log_decay + t * head.log_decay_stride;
      float* a = decay + (t - begin) * head.dim;
      for_vectors<V>(
          head.dim, [&](int64_t i, int64_t lanes) { store_lanes(vec_exp(load_lanes<V>(g + i, lanes)), a + i, lanes); });
      if (head.out != nullptr)
        key_query[t - begin] = dot<V>(head.k + t * head.k_stride, head.q + t * head.q_stride, head.dim);
    }
  }

  Columns load_initial(int64_t i) const {
    return head.state_in != nullptr ? load(head.state_in + i * head.dim + column) : zero();
  }

  // The pass of row t; `last` is the update of row t - 1 (not read for row 0, whose state comes from state_in). Without
  // kKeep the decayed state is not stored.
  template <bool kFirst, bool kOut, bool kKeep>
  void pass(int64_t t, const Columns& last, Columns& u, Columns& o) const {
    const float* k = head.k + t * head.k_stride;
    const float* q = head.q + t * head.q_stride;
    const float* k_last = k - head.k_stride;
    const float* a = decay + t % kBlock * head.dim;
    Columns sum_u = zero(), sum_o = zero();
    for (int64_t i = 0; i < head.dim; ++i) {
      float* row = state + i * kWidth;
      Columns s;
      if constexpr (kFirst) {
        s = load_initial(i);
      } else {
        const V key = V::set(k_last[i]);
        for (int j = 0; j < kVectors; ++j) s.v[j] = fma(key, last.v[j], V::load(row + j * kLanes));
      }
      const V keep = V::set(a[i]), key = V::set(k[i]), query = V::set(kOut ? q[i] : 0.0F);
      for (int j = 0; j < kVectors; ++j) {
        s.v[j] = s.v[j] * keep;
        if constexpr (kKeep) s.v[j].store(row + j * kLanes);
        sum_u.v[j] = fma(s.v[j], key, sum_u.v[j]);
        if constexpr (kOut) sum_o.v[j] = fma(s.v[j], query, sum_o.v[j]);
      }
    }
    u = sum_u;
    o = sum_o;
  }

  // The state after row t, whose update is `delta`.
  void write_state(int64_t t, const Columns& delta, float* to) const {
    const float* k = head.k + t * head.k_stride;
    for (int64_t i = 0; i < head.dim; ++i) {
      Columns s;
      for (int j = 0; j < kVectors; ++j)
        s.v[j] = fma(V::set(k[i]), delta.v[j], V::load(state + i * kWidth + j * kLanes));
      store(s, to + i * head.dim + column);
    }
  }

  // The same after the only row, from state_in: the decay is done again rather than stored and loaded.
  void write_state_of_one_row(const Columns& delta, float* to) const {
    for (int64_t i = 0; i < head.dim; ++i) {
      Columns s = load_initial(i);
      for (int j = 0; j < kVectors; ++j) s.v[j] = fma(V::set(head.k[i]), delta.v[j], s.v[j] * V::set(decay[i]));
      store(s, to + i * head.dim + column);
    }
  }

  template <bool kOut>
  void run(bool round) const {
    const bool one_row = head.rows == 1 && head.checkpoint_count == 0;
    const KdaCheckpoint* checkpoint = head.checkpoints;
    const KdaCheckpoint* const checkpoint_end = checkpoint + head.checkpoint_count;
    Columns delta = zero(), u, o;
    for (int64_t t = 0; t < head.rows; ++t) {
      if (t % kBlock == 0) prepare_block(t);
      if (one_row) {
        pass<true, kOut, false>(t, delta, u, o);
      } else if (t == 0) {
        pass<true, kOut, true>(t, delta, u, o);
      } else {
        pass<false, kOut, true>(t, delta, u, o);
      }
      const Columns v = load(head.v + t * head.v_stride + column);
      const V beta = V::set(head.beta[t * head.beta_stride]);
      for (int j = 0; j < kVectors; ++j) delta.v[j] = beta * (v.v[j] - u.v[j]);
      if constexpr (kOut) {
        const V kq = V::set(key_query[t % kBlock]);
        for (int j = 0; j < kVectors; ++j) o.v[j] = rounded_if(round, fma(kq, delta.v[j], o.v[j]));
        store(o, head.out + t * head.out_stride + column);
      }
      for (; checkpoint != checkpoint_end && checkpoint->rows == t + 1; ++checkpoint) {
        write_state(t, delta, checkpoint->state + head.checkpoint_offset);
      }
    }
    if (head.state_out == nullptr) return;
    if (one_row) {
      write_state_of_one_row(delta, head.state_out);
    } else {
      write_state(head.rows - 1, delta, head.state_out);
    }
  }
};

template <class V>
struct KdaImpl {
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int64_t kSliceColumns = 4 * kLanes;
  static constexpr int64_t kBlock = KdaSlice<V, 1, true>::kBlock;

  static int64_t scratch_floats(int64_t dim) { return dim * kSliceColumns + kBlock * dim + kBlock; }

  // head.rows >= 1.
  static void slice(const KdaHead& head, int64_t column, bool round, float* scratch) {
    const int64_t left = head.dim - column;
    if (left >= kSliceColumns) return run<4, true>(head, column, kLanes, round, scratch);
    const int64_t vectors = (left + kLanes - 1) / kLanes;
    const int64_t tail = left - (vectors - 1) * kLanes;
    switch (vectors) {
      case 1:
        return tail == kLanes ? run<1, true>(head, column, tail, round, scratch)
                              : run<1, false>(head, column, tail, round, scratch);
      case 2:
        return tail == kLanes ? run<2, true>(head, column, tail, round, scratch)
                              : run<2, false>(head, column, tail, round, scratch);
      case 3:
        return tail == kLanes ? run<3, true>(head, column, tail, round, scratch)
                              : run<3, false>(head, column, tail, round, scratch);
      default:
        return run<4, false>(head, column, tail, round, scratch);
    }
  }

  template <int kVectors, bool kFull>
  static void run(const KdaHead& head, int64_t column, int64_t tail, bool round, float* scratch) {
    float* decay = scratch + head.dim * kSliceColumns;
    const KdaSlice<V, kVectors, kFull> s{head, column, tail, scratch, decay, decay + kBlock * head.dim};
    if (head.out != nullptr) {
      s.template run<true>(round);
    } else {
      s.template run<false>(round);
    }
  }

  static void l2_norm_row(float* x, int64_t n, float factor) {
    const V scale = V::set(factor) / sqrt(V::set(sum_of_squares<V>(x, n)) + V::set(1e-6F));
    for_vectors<V>(n,
                   [&](int64_t i, int64_t lanes) { store_lanes(load_lanes<V>(x + i, lanes) * scale, x + i, lanes); });
  }

  static void log_decay_row(const float* z, const float* dt_bias, float a, const KdaGate& gate, int64_t n, float* g) {
    const bool bounded = gate.bounded;
    const V factor = V::set(bounded ? gate.lower_bound : -a);
    for_vectors<V>(n, [&](int64_t i, int64_t lanes) {
      const V x = load_lanes<V>(z + i, lanes) + load_lanes<V>(dt_bias + i, lanes);
      const V y = bounded ? vec_sigmoid(V::set(a) * x) : vec_softplus(x);
      store_lanes(factor * y, g + i, lanes);
    });
  }

  static void short_conv_block(const ConvBlock& b, bool round) {
    const int64_t padded = (b.channels + 15) / 16 * 16;
    int64_t done = 0;
    for (; b.taps == 4 && done + kLanes <= b.channels; done += kLanes) {
      V taps[4];
      V::load_interleaved4(b.weight + done * 4, taps);
      for (int64_t j = 0; j < 4; ++j) taps[j].store(b.scratch + j * padded + done);
    }
    for (int64_t c = done; c < b.channels; ++c) {
      for (int64_t j = 0; j < b.taps; ++j) b.scratch[j * padded + c] = b.weight[c * b.taps + j];
    }
    for (int64_t t = b.row_begin; t < b.row_end; ++t) {
      for_vectors<V>(b.channels, [&](int64_t c, int64_t lanes) {
        V sum = V::zero();
        for (int64_t j = 0; j < b.taps; ++j) {
          const float* from = conv_source(b, t, j);
          if (from != nullptr)
            sum = fma(load_lanes<V>(b.scratch + j * padded + c, lanes), load_lanes<V>(from + c, lanes), sum);
        }
        store_lanes(rounded_if(round, sum * vec_sigmoid(sum)), b.y + t * b.y_stride + c, lanes);
      });
    }
  }

 private:
  // The row that tap j of row t multiplies; null: zeros.
  static const float* conv_source(const ConvBlock& b, int64_t t, int64_t j) {
    const int64_t row = t - (b.taps - 1) + j;
    if (row >= 0) return b.x + row * b.x_stride;
    return b.history != nullptr ? b.history + (t + j) * b.history_stride : nullptr;
  }
};

}  // namespace trireme::ops::cpu
