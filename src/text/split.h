// Pre-tokenisation: text to the pieces that byte-pair encoding works on one by one.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme::text {

// K3's own limits on what its pattern is applied to, in code points.
inline constexpr int64_t kMaxSliceCharacters = 400'000;
inline constexpr int64_t kMaxRunCharacters = 25'000;

// Cuts text that is longer than `max_slice` characters, and then wherever a run of whitespace, or of anything else,
// would become longer than `max_run`. K3 encodes every slice on its own, so a cut is visible in the ids. `text` is
// valid UTF-8.
std::vector<std::string_view> cut_long_text(std::string_view text, int64_t max_slice = kMaxSliceCharacters,
                                            int64_t max_run = kMaxRunCharacters);

// The K3 pattern, compiled. Immutable after construction: one object may be used from many threads.
class Splitter {
 public:
  Splitter();
  // Appends the pieces of `text` (valid UTF-8) in order; joined, they are the text.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

}  // namespace trireme::text
