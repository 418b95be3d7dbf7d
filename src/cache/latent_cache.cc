#include "cache/latent_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ledger/forms.h"

namespace trireme::cache {

LatentCache::LatentCache(const checkpoint::ModelConfig& config, ops::Precision precision, int64_t pages,
                         ledger::Account& account)
    : layers_(std::count(config.kinds.begin(), config.kinds.end(), checkpoint::LayerKind::mla)),
      width_(config.mla.cache_width()),
      dtype_(precision == ops::Precision::f32 ? DType::f32 : DType::bf16),
      pages_("page", pages) {
  const int64_t bytes = pages * layers_ * ops::kPageTokens * width_ * dtype_bytes(dtype_);
  const int64_t planned = account.plan().line(ledger::kPageLine).bytes;
  if (bytes != planned) {
    throw Failure(
        fmt::format("{} pages take {} bytes, but the ledger line pool.mla_pages has {}", pages, bytes, planned));
  }
  memory_ = account.take(ledger::kPageLine, bytes);
}

ops::LatentPages LatentCache::layer(int64_t index) {
  ops::LatentPages view{nullptr, dtype_, width_};
  view.base = memory_.data() + index * pages_.total() * view.page_bytes();
  return view;
}

}  // namespace trireme::cache
