// The reference backend: every operation written as its formula reads, with float64 inside. It is the measure of the
// other backends and slow by design; it keeps weights as the checkpoint stores them.
#pragma once

#include <string_view>

#include "ops/ops.h"

namespace trireme::ops::reference {

class ReferenceOps final : public Ops {
 public:
  using Ops::Ops;

  std::string_view name() const override { return "reference"; }

  // linear.cc
  int64_t packed_bytes(WeightFormat format, int64_t rows, int64_t cols) const override;
  PackedMatrix pack(const WeightView& w, Buffer storage) const override;
  void linear(ConstRows x, const PackedMatrix& w, Rows y, Output output) const override;
  void embed(std::span<const int32_t> tokens, const EmbeddingTable& table, Rows y) const override;

  // norms.cc
  void rms_norm(ConstRows x, const float* w, float eps, Rows y) const override;
  void residual_mix(std::span<const ConstRows> bank, ConstRows prefix, const float* score, float eps,
                    Rows y) const override;
  void add(ConstRows a, ConstRows b, Rows y) const override;
  void sigmoid_gate(ConstRows x, ConstRows gate, Rows y) const override;
  void gated_rms_norm(ConstRows x, const float* w, ConstRows gate, int64_t dim, float eps, Rows y) const override;
  void glu(ConstRows gate, ConstRows up, const Glu& glu, Rows y) const override;

  // kda.cc
  void short_conv(const ShortConvArgs& args) const override;
  void kda_prepare(const KdaPrepareArgs& args) const override;
  void kda(const KdaArgs& args) const override;

  // mla.cc
  void store_latent(const StoreLatentArgs& args) const override;
  void mla(const MlaArgs& args) const override;
  void merge_contexts(const MergeArgs& args) const override;

  // moe.cc
  void route(const RouterArgs& args) const override;
  void experts(const ExpertsArgs& args) const override;
  void combine_experts(const CombineArgs& args) const override;

  // draft.cc
  void rope(const RopeArgs& args) const override;
  void draft_attention(const DraftAttentionArgs& args) const override;

 private:
  // A result as this precision keeps it.
  float rounded(double value) const {
    const auto single = static_cast<float>(value);
    return precision() == Precision::bf16 ? round_to_bf16(single) : single;
  }

  // Calls body(t) for every row, over the pool.
  template <class Body>
  void each_row(int64_t rows, const Body& body) const {
    pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) body(t);
    });
  }
};

}  // namespace trireme::ops::reference
