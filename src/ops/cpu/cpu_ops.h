// The CPU backend: one class that cuts work over threads and blocks, and tables of inner kernels, one table an
// instruction set.
#pragma once

#include <string_view>

#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/row_kernels.h"
#include "ops/ops.h"

namespace trireme::ops::cpu {

class CpuOps final : public Ops {
 public:
  CpuOps(std::string_view name, const LinearKernels& linear_kernels, const RowKernels& row_kernels, Precision precision,
         ThreadPool& pool)
      : Ops(precision, pool), name_(name), linear_kernels_(linear_kernels), row_kernels_(row_kernels) {}

  std::string_view name() const override { return name_; }

  // cpu_linear.cc
  int64_t packed_bytes(WeightFormat format, int64_t rows, int64_t cols) const override;
  PackedMatrix pack(const WeightView& w, Buffer storage) const override;
  void linear(ConstRows x, const PackedMatrix& w, Rows y, Output output) const override;
  void embed(std::span<const int32_t> tokens, const EmbeddingTable& table, Rows y) const override;

  // cpu_experts.cc
  void route(const RouterArgs& args) const override;
  void experts(const ExpertsArgs& args) const override;
  void combine_experts(const CombineArgs& args) const override;

  // cpu_rows.cc
  void rms_norm(ConstRows x, const float* w, float eps, Rows y) const override;
  void residual_mix(std::span<const ConstRows> bank, ConstRows prefix, const float* score, float eps,
                    Rows y) const override;
  void add(ConstRows a, ConstRows b, Rows y) const override;
  void sigmoid_gate(ConstRows x, ConstRows gate, Rows y) const override;
  void gated_rms_norm(ConstRows x, const float* w, ConstRows gate, int64_t dim, float eps, Rows y) const override;
  void glu(ConstRows gate, ConstRows up, const Glu& glu, Rows y) const override;

  // cpu_kda.cc
  void short_conv(const ShortConvArgs& args) const override;
  void kda_prepare(const KdaPrepareArgs& args) const override;
  void kda(const KdaArgs& args) const override;

  // cpu_mla.cc
  void store_latent(const StoreLatentArgs& args) const override;
  void mla(const MlaArgs& args) const override;
  void merge_contexts(const MergeArgs& args) const override;

  // cpu_draft.cc
  void rope(const RopeArgs& args) const override;
  void draft_attention(const DraftAttentionArgs& args) const override;

 private:
  std::string_view name_;
  const LinearKernels& linear_kernels_;
  const RowKernels& row_kernels_;
};

}  // namespace trireme::ops::cpu
