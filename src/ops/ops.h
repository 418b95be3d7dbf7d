// The operations of the forward pass. One object is one backend at one precision; ops/select.h makes it.
//
// Rules that hold for every operation and backend:
// * Row independence. A result row has the same bits whatever other rows are in the call, so a request's numbers do not
//   depend on batch, chunk size or arrival order.
// * Accumulation is float32 (the reference: float64 where that is easy). Outputs are overwritten, never added to.
// * In bf16 precision inputs called activations hold bfloat16 values, and results are rounded to bfloat16 unless the
//   contract says float32. In f32 precision nothing is rounded.
// * Shapes are the caller's duty (model/ checks them at load); zero rows are legal everywhere and do nothing.
// * NaN and infinity pass through as IEEE arithmetic has them; they never crash or reach another row.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/thread_pool.h"
#include "ops/activation.h"
#include "ops/draft.h"
#include "ops/kda.h"
#include "ops/linear.h"
#include "ops/mla.h"
#include "ops/moe.h"
#include "tensor/matrix.h"

namespace trireme::ops {

enum class Precision : uint8_t { f32, bf16 };

class Ops {
 public:
  Ops(Precision precision, ThreadPool& pool) : precision_(precision), pool_(pool) {}
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  Precision precision() const { return precision_; }
  ThreadPool& pool() const { return pool_; }
  // "reference", "avx2", "avx512" or "amx".
  virtual std::string_view name() const = 0;

  // ---- linear.h
  // Bytes of a packed matrix; `format` as stored in the checkpoint.
  virtual int64_t packed_bytes(WeightFormat format, int64_t rows, int64_t cols) const = 0;
  // Packs `w` into `storage`, which must have exactly packed_bytes.
  virtual PackedMatrix pack(const WeightView& w, Buffer storage) const = 0;
  // y[t] = W x[t]; x [T, w.cols], y [T, w.rows], strided. Output::f32: not rounded in either precision (router,
  // lm_head).
  virtual void linear(ConstRows x, const PackedMatrix& w, Rows y, Output output = Output::rounded) const = 0;
  // y[t] = table[tokens[t]], rounded; tokens are in range (the engine checks them).
  virtual void embed(std::span<const int32_t> tokens, const EmbeddingTable& table, Rows y) const = 0;

  // ---- norms and residuals
  // y = w * round(x * rsqrt(mean(x^2) + eps)), rounded; w [cols]. x and y may be the same rows.
  virtual void rms_norm(ConstRows x, const float* w, float eps, Rows y) const = 0;
  // Attention residual over the sources v_1..v_n: the bank's entries (oldest first, each [T, cols]), then prefix.
  //   s_i = sum_d v_i[d] rsqrt(mean(v_i^2) + eps) score[d] ;  y = sum_i softmax(s)_i v_i, rounded
  // score [cols] = norm weight * projection. y must not overlap a source.
  virtual void residual_mix(std::span<const ConstRows> bank, ConstRows prefix, const float* score, float eps,
                            Rows y) const = 0;
  // y = a + b, rounded. y may be a or b.
  virtual void add(ConstRows a, ConstRows b, Rows y) const = 0;
  // y = round(x) * round(sigmoid(gate)), rounded. y may be x.
  virtual void sigmoid_gate(ConstRows x, ConstRows gate, Rows y) const = 0;
  // Per head of `dim` columns: y = x * rsqrt(mean(x^2) + eps) * w[dim] * sigmoid(gate), float32 inside, rounded once.
  // y may be x.
  virtual void gated_rms_norm(ConstRows x, const float* w, ConstRows gate, int64_t dim, float eps, Rows y) const = 0;
  // y = glu(gate, up), rounded. y may be gate or up.
  virtual void glu(ConstRows gate, ConstRows up, const Glu& glu, Rows y) const = 0;

  // ---- kda.h
  virtual void short_conv(const ShortConvArgs& args) const = 0;
  virtual void kda_prepare(const KdaPrepareArgs& args) const = 0;
  virtual void kda(const KdaArgs& args) const = 0;

  // ---- mla.h
  virtual void store_latent(const StoreLatentArgs& args) const = 0;
  virtual void mla(const MlaArgs& args) const = 0;
  virtual void merge_contexts(const MergeArgs& args) const = 0;

  // ---- moe.h
  virtual void route(const RouterArgs& args) const = 0;
  virtual void experts(const ExpertsArgs& args) const = 0;
  virtual void combine_experts(const CombineArgs& args) const = 0;

  // ---- draft.h
  virtual void rope(const RopeArgs& args) const = 0;
  virtual void draft_attention(const DraftAttentionArgs& args) const = 0;

 private:
  Precision precision_;
  ThreadPool& pool_;
};

}  // namespace trireme::ops
