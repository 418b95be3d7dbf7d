#include "cli/token_file.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "text/json_text.h"

namespace trireme::cli {
namespace {

using nlohmann::json;

// What stands for <i> in "prompt.<i>.tokens".
std::optional<std::string_view> prompt_digits(std::string_view name) {
  constexpr std::string_view kHead = "prompt.";
  constexpr std::string_view kTail = ".tokens";
  if (!name.starts_with(kHead) || !name.ends_with(kTail) || name.size() < kHead.size() + kTail.size())
    return std::nullopt;
  return name.substr(kHead.size(), name.size() - kHead.size() - kTail.size());
}

// The number that is written so and in no other way.
std::optional<int64_t> canonical_number(std::string_view digits) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || fmt::to_string(number) != digits || number < 0) return std::nullopt;
  return number;
}

class Reader {
 public:
  Reader(const std::filesystem::path& path, int64_t vocabulary) : path_(path), vocabulary_(vocabulary) {}

  TokenFile read() {
    std::error_code ignored;
    if (std::filesystem::is_directory(path_, ignored)) fail("is a folder; it must be a file");
    std::ifstream in(path_, std::ios::binary);
    if (!in) fail("cannot be read");
    std::string start(9, '\0');
    in.read(start.data(), 9);
    // After the 8 bytes of its length a safetensors header is a JSON object; no list of lists has a brace there.
    if (in.gcount() == 9 && start[8] == '{') {
      read_safetensors();
    } else {
      in.clear();
      in.seekg(0);
      read_json(std::string(std::istreambuf_iterator<char>(in), {}));
    }
    if (file_.prompts.empty())
      fail("holds no prompts; expected tensors prompt.0.tokens, ... or a JSON list of lists of ids");
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw BadInput(fmt::format("{}: {}", path_.string(), what)); }

  void read_safetensors() {
    const checkpoint::SafetensorsFile file(path_);
    for (const auto& [name, info] : file.tensors()) {
      if (const auto digits = prompt_digits(name)) {
        const auto number = canonical_number(*digits);
        if (!number) {
          fail(fmt::format("tensor {}: \"{}\" is no prompt number; it must be digits without a leading zero", name,
                           *digits));
        }
        for (const int64_t id : integers(file, name, info)) add(*number, id);
        if (info.shape[0] == 0) fail(fmt::format("prompt {} is empty; it needs at least one token", *number));
      } else if (name == "trace.kda_state_layers") {
        for (const int64_t layer : integers(file, name, info))
          file_.state_layers.push_back(static_cast<int32_t>(layer));
      }
    }
  }

  std::vector<int64_t> integers(const checkpoint::SafetensorsFile& file, const std::string& name,
                                const checkpoint::TensorInfo& info) const {
    if ((info.dtype != DType::i32 && info.dtype != DType::i64) || info.shape.size() != 1) {
      fail(fmt::format("tensor {} is {} with {} dimensions; it must be I32 or I64 with one", name,
                       dtype_name(info.dtype), info.shape.size()));
    }
    const std::span<const std::byte> bytes = file.bytes(info);
    std::vector<int64_t> values(static_cast<size_t>(info.shape[0]));
    for (size_t i = 0; i < values.size(); ++i) {
      if (info.dtype == DType::i64) {
        std::memcpy(&values[i], bytes.data() + i * 8, 8);
      } else {
        int32_t narrow = 0;
        std::memcpy(&narrow, bytes.data() + i * 4, 4);
        values[i] = narrow;
      }
    }
    return values;
  }

  void read_json(const std::string& text) {
    if (!text::is_json(text)) fail("is neither a safetensors file nor JSON");
    const json list = json::parse(text);
    if (!list.is_array()) fail("the JSON must be a list of lists of token ids");
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_array()) fail(fmt::format("prompt {} is not a list of token ids", i));
      if (list[i].empty()) fail(fmt::format("prompt {} is empty; it needs at least one token", i));
      for (const json& id : list[i]) {
        if (!id.is_number_integer()) fail(fmt::format("prompt {} holds {}, which is not a token id", i, id.dump()));
        if (id.is_number_unsigned() && id.get<uint64_t>() >= static_cast<uint64_t>(vocabulary_))
          refuse(static_cast<int64_t>(i), id.dump());
        add(static_cast<int64_t>(i), id.get<int64_t>());
      }
    }
  }

  void add(int64_t prompt, int64_t id) {
    if (id < 0 || id >= vocabulary_) refuse(prompt, fmt::to_string(id));
    file_.prompts[prompt].push_back(static_cast<int32_t>(id));
  }

  [[noreturn]] void refuse(int64_t prompt, const std::string& id) {
    fail(fmt::format("prompt {}: token {} at position {} is outside the vocabulary of {} entries", prompt, id,
                     file_.prompts[prompt].size(), vocabulary_));
  }

  std::filesystem::path path_;
  int64_t vocabulary_;
  TokenFile file_;
};

}  // namespace

TokenFile read_token_file(const std::filesystem::path& path, int64_t vocabulary) {
  return Reader(path, vocabulary).read();
}

}  // namespace trireme::cli
