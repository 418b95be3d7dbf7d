// A model with small pools of its own, for tests: sequences are slots and consecutive pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "ledger/ledger.h"
#include "model/model.h"
#include "ops/select.h"

namespace trireme::testing {

// Pools for `slots` sequences of up to `tokens` tokens. Pages of a sequence are handed out in a scattered order.
class Pools {
 public:
  Pools(const checkpoint::ModelConfig& config, ops::Precision precision, int64_t slots, int64_t tokens)
      : slots_(slots), pages_each_((tokens + ops::kPageTokens - 1) / ops::kPageTokens) {
    const int64_t recurrent = config.kda.heads * config.kda.dim * config.kda.dim;
    const int64_t conv = (config.kda.conv_taps - 1) * 3 * config.kda.width();
    for (const checkpoint::LayerKind kind : config.kinds) {
      if (kind == checkpoint::LayerKind::kda) {
        memory_.emplace_back(slots * (recurrent + conv) * 4);
        float* base = memory_.back().as<float>().data();
        views_.kda.push_back({base, recurrent, base + slots * recurrent, conv});
      } else {
        ops::LatentPages pages{nullptr, precision == ops::Precision::bf16 ? DType::bf16 : DType::f32,
                               config.mla.cache_width()};
        memory_.emplace_back(slots * pages_each_ * pages.page_bytes());
        pages.base = memory_.back().data();
        views_.latent.push_back(pages);
      }
    }
    recurrent_ = recurrent;
    conv_ = conv;
    // What a slot or page held before must not matter.
    for (Buffer& b : memory_) std::memset(b.data(), 0x7f, static_cast<size_t>(b.bytes()));
  }

  const model::StateViews& views() const { return views_; }
  int64_t recurrent_elements() const { return recurrent_; }
  int64_t conv_elements() const { return conv_; }

  // The pages of the sequence in `slot`: no two sequences share one, neighbours are far apart.
  std::vector<int32_t> pages(int32_t slot) const {
    std::vector<int32_t> pages;
    for (int64_t i = pages_each_ - 1; i >= 0; --i) pages.push_back(static_cast<int32_t>(i * slots_ + slot));
    return pages;
  }

  // All KDA state of a slot, for comparing bits.
  std::vector<float> state(int32_t slot) const {
    std::vector<float> all;
    for (const model::KdaLayerView& v : views_.kda) {
      const float* r = v.recurrent + slot * v.recurrent_stride;
      const float* c = v.conv + slot * v.conv_stride;
      all.insert(all.end(), r, r + recurrent_);
      all.insert(all.end(), c, c + conv_);
    }
    return all;
  }

  void copy_slot(int32_t from, int32_t to) {
    for (const model::KdaLayerView& v : views_.kda) {
      std::copy_n(v.recurrent + from * v.recurrent_stride, recurrent_, v.recurrent + to * v.recurrent_stride);
      std::copy_n(v.conv + from * v.conv_stride, conv_, v.conv + to * v.conv_stride);
    }
  }

 private:
  int64_t slots_;
  int64_t pages_each_;
  int64_t recurrent_ = 0;
  int64_t conv_ = 0;
  std::vector<Buffer> memory_;
  model::StateViews views_;
};

// One thread by default: tests run side by side, and threads do not change bits (StateTest shows it).
class LoadedModel {
 public:
  LoadedModel(const std::filesystem::path& dir, std::string_view isa, ops::Precision precision, int threads = 1)
      : pool(threads),
        ops(ops::make_ops(isa, precision, pool)),
        checkpoint(checkpoint::Checkpoint::open(dir)),
        account(ledger::plan_memory(checkpoint, *ops, {})),
        model(checkpoint, *ops, account) {}

  Pools pools(int64_t slots, int64_t tokens) const { return {model.config(), ops->precision(), slots, tokens}; }

  ThreadPool pool;
  std::unique_ptr<ops::Ops> ops;
  checkpoint::Checkpoint checkpoint;
  ledger::Account account;
  model::Model model;
};

// One sequence of a pool, run alone: feeds tokens and collects logits.
class Sequence {
 public:
  Sequence(const model::Model& model, Pools& pools, int32_t slot) : model_(model), pools_(pools), slot_(slot) {}

  int64_t position() const { return position_; }
  void set_position(int64_t position) { position_ = position; }

  model::Segment segment(int64_t rows) const { return {rows, position_, slot_, pools_.pages(slot_), true, {}}; }

  // Logits after every token, fed in pieces of `chunk` (0: whole).
  Matrix feed(std::span<const int32_t> tokens, int64_t chunk = 0, model::Trace* trace = nullptr) {
    const auto count = static_cast<int64_t>(tokens.size());
    Matrix all(count, model_.config().vocab);
    if (chunk == 0) chunk = count;
    for (int64_t begin = 0; begin < count; begin += chunk) {
      const int64_t rows = std::min(chunk, count - begin);
      model::Batch batch;
      batch.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + rows);
      batch.segments.push_back(segment(rows));
      for (int64_t r = 0; r < rows; ++r) batch.logit_rows.push_back(r);
      const model::ForwardOutput out = model_.forward(batch, pools_.views(), trace);
      std::copy_n(out.logits.data(), rows * all.cols(), all.data() + begin * all.cols());
      position_ += rows;
    }
    return all;
  }

 private:
  const model::Model& model_;
  Pools& pools_;
  int32_t slot_;
  int64_t position_ = 0;
};

inline std::span<const float> row_of(const Matrix& m, int64_t r) {
  return {m.data() + r * m.cols(), static_cast<size_t>(m.cols())};
}

// Equal bits, NaN or not.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace trireme::testing
