#include "cache/kda_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ledger/forms.h"

namespace trireme::cache {

KdaCache::KdaCache(const checkpoint::ModelConfig& config, int64_t slots, ledger::Account& account)
    : layers_(std::count(config.kinds.begin(), config.kinds.end(), checkpoint::LayerKind::kda)),
      recurrent_floats_(config.kda.heads * config.kda.dim * config.kda.dim),
      conv_floats_((config.kda.conv_taps - 1) * 3 * config.kda.width()),
      slots_("slot", slots) {
  const int64_t bytes = layers_ * slots * stride() * static_cast<int64_t>(sizeof(float));
  const int64_t planned = account.plan().line(ledger::kStateLine).bytes;
  if (bytes != planned) {
    throw Failure(
        fmt::format("{} slots take {} bytes, but the ledger line pool.kda_state has {}", slots, bytes, planned));
  }
  memory_ = account.take(ledger::kStateLine, bytes);
}

float* KdaCache::recurrent(int64_t index) { return memory_.as<float>().data() + index * slots_.total() * stride(); }

float* KdaCache::conv(int64_t index) { return recurrent(index) + recurrent_floats_; }

}  // namespace trireme::cache
