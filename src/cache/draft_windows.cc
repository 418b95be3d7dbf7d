#include "cache/draft_windows.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ledger/forms.h"

namespace trireme::cache {

DraftWindows::DraftWindows(int64_t slots, int64_t layers, int64_t rows, int64_t width, ledger::Account& account)
    : layers_(layers), rows_(rows), width_(width) {
  const int64_t bytes = slots * layers * 2 * rows * width * static_cast<int64_t>(sizeof(float));
  const int64_t planned = account.plan().line(ledger::kDraftWindowLine).bytes;
  if (bytes != planned) {
    throw Failure(fmt::format("windows of {} slots take {} bytes, but the ledger line pool.draft_windows has {}", slots,
                              bytes, planned));
  }
  memory_ = account.take(ledger::kDraftWindowLine, bytes);
}

}  // namespace trireme::cache
