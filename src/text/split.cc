#include "text/split.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/error.h"
#include "text/utf8.h"

namespace trireme::text {

namespace {

// \s is spelled out: PCRE2's own also holds U+180E, which left Unicode's White_Space in version 6.3.
constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// "sc:" asks for the script itself: PCRE2's plain \p{Han} means script extensions, which hold CJK punctuation as well.
constexpr const char* kHan = R"(\p{sc:Han})";

// The classes U = (Lu Lt Lm Lo M) minus Han and W = (Ll Lm Lo M) minus Han are written as complements, because a
// complement of one union needs no set subtraction and stays a single class to match.
std::string pattern() {
  const std::string upper = fmt::format(R"([^{}\p{{Ll}}\p{{N}}\p{{P}}\p{{S}}\p{{Z}}\p{{C}}])", kHan);
  const std::string lower = fmt::format(R"([^{}\p{{Lu}}\p{{Lt}}\p{{N}}\p{{P}}\p{{S}}\p{{Z}}\p{{C}}])", kHan);
  const std::string before = R"([^\r\n\p{L}\p{N}]?)";
  const std::string contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
  const std::array<std::string, 8> alternatives = {
      fmt::format("{}+", kHan),
      before + upper + "*" + lower + "+" + contraction,
      before + upper + "+" + lower + "*" + contraction,
      R"(\p{N}{1,3})",
      fmt::format(R"( ?[^{}\p{{L}}\p{{N}}]+[\r\n]*)", kSpace),
      fmt::format(R"([{}]*[\r\n]+)", kSpace),
      fmt::format(R"([{0}]+(?![^{0}]))", kSpace),
      fmt::format(R"([{}]+)", kSpace),
  };
  std::string all;
  for (const std::string& one : alternatives) all += (all.empty() ? "" : "|") + one;
  return all;
}

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What Python's str.isspace says, which K3's cutting of long text goes by: \s and the four separators below U+0020.
bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// One call's matching state. Most pieces fit the stack that compiled patterns bring along; the large one is made only
// when a piece of thousands of characters asks for it.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code), data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    if (!data_ || !context_) throw Failure("tokenizer: out of memory for matching");
  }

  // Length in bytes of the piece that begins at `start`.
  size_t piece_length(std::string_view text, size_t start) {
    int found = match(text, start);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
      stack_.reset(pcre2_jit_stack_create(size_t{64} << 10, size_t{64} << 20, nullptr));
      if (!stack_) throw Failure("tokenizer: out of memory for the matching stack");
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      found = match(text, start);
    }
    if (found < 0) throw Failure(fmt::format("tokenizer: splitting failed at byte {}: {}", start, pcre_message(found)));
    const size_t end = pcre2_get_ovector_pointer(data_.get())[1];
    if (end <= start) throw Failure(fmt::format("tokenizer: empty piece at byte {}", start));
    return end - start;
  }

 private:
  struct Free {
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
    void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
  };

  int match(std::string_view text, size_t start) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start, PCRE2_NO_UTF_CHECK,
                       data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::unique_ptr<pcre2_match_data, Free> data_;
  std::unique_ptr<pcre2_match_context, Free> context_;
  std::unique_ptr<pcre2_jit_stack, Free> stack_;
};

}  // namespace

std::vector<std::string_view> cut_long_text(std::string_view text, int64_t max_slice, int64_t max_run) {
  std::vector<std::string_view> slices;
  if (static_cast<int64_t>(text.size()) <= std::min(max_slice, max_run)) {
    if (!text.empty()) slices.push_back(text);
    return slices;
  }
  int64_t begin = 0;  // of the slice, in bytes
  int64_t block = 0;  // characters since the last multiple of max_slice
  int64_t run = 0;    // characters in the run that ends here
  bool run_is_space = false;
  const auto cut = [&](int64_t at) {
    slices.push_back(text.substr(static_cast<size_t>(begin), static_cast<size_t>(at - begin)));
    begin = at;
  };
  for (int64_t i = 0; i < static_cast<int64_t>(text.size());) {
    const Utf8Step step = next_character(text, i);
    const bool space = is_python_space(step.code_point);
    if (block == max_slice) {
      cut(i);
      block = 0;
      run = 0;
    }
    if (run > 0 && space == run_is_space && run == max_run) {
      cut(i);
      run = 0;
    }
    run = (run > 0 && space == run_is_space) ? run + 1 : 1;
    run_is_space = space;
    ++block;
    i += step.length;
  }
  cut(static_cast<int64_t>(text.size()));
  return slices;
}

Splitter::Splitter() {
  const std::string source = pattern();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Anchored when compiled, not when matched: the compiled matcher does not take it later. Every character begins some
  // alternative, so a match never fails.
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr));
  if (!code_) throw Failure(fmt::format("tokenizer: pattern, offset {}: {}", offset, pcre_message(error)));
  // Without a just-in-time compiler (a system that forbids it) the interpreter gives the same pieces, slower.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

void Splitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  Matcher matcher(code_.get());
  for (size_t start = 0; start < text.size();) {
    const size_t length = matcher.piece_length(text, start);
    pieces.push_back(text.substr(start, length));
    start += length;
  }
}

}  // namespace trireme::text
