#include "cli/token_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace trireme::cli {
namespace {

class TokenFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path json(const std::string& text) const {
    std::ofstream(folder_ / "ids.json", std::ios::binary) << text;
    return folder_ / "ids.json";
  }
  template <class T>
  std::filesystem::path tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                               std::vector<T> values) const {
    const checkpoint::TensorToWrite one{name, dtype, std::move(shape), std::as_bytes(std::span<const T>(values))};
    checkpoint::write_safetensors(folder_ / "ids.safetensors", {&one, 1});
    return folder_ / "ids.safetensors";
  }
  static std::string error(const std::filesystem::path& path) {
    try {
      read_token_file(path, 10);
    } catch (const BadInput& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.find('\n'), std::string::npos);
      EXPECT_TRUE(text.starts_with(path.string())) << text;
      return text.substr(std::min(text.size(), path.string().size() + 2));
    }
    return "nothing thrown";
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("trireme-token-file-" + std::to_string(getpid()));
};

using Prompts = std::map<int64_t, std::vector<int32_t>>;

TEST_F(TokenFileTest, ReadsBothForms) {
  EXPECT_EQ(read_token_file(json(" [[1, 2], [9]]"), 10).prompts, (Prompts{{0, {1, 2}}, {1, {9}}}));
  EXPECT_EQ(read_token_file(tensor<int32_t>("prompt.3.tokens", DType::i32, {2}, {4, 5}), 10).prompts,
            (Prompts{{3, {4, 5}}}));
  EXPECT_EQ(read_token_file(tensor<int64_t>("prompt.0.tokens", DType::i64, {2}, {4, 5}), 10).prompts,
            (Prompts{{0, {4, 5}}}));
}

TEST_F(TokenFileTest, RefusalsNameTheThing) {
  EXPECT_EQ(error(folder_ / "absent"), "cannot be read");
  EXPECT_EQ(error(json("")), "is neither a safetensors file nor JSON");
  EXPECT_EQ(error(json("[[1,")), "is neither a safetensors file nor JSON");
  EXPECT_EQ(error(json("{\"a\": [1]}")), "the JSON must be a list of lists of token ids");
  EXPECT_EQ(error(json("[]")),
            "holds no prompts; expected tensors prompt.0.tokens, ... or a JSON list of lists of ids");
  EXPECT_EQ(error(json("[1, 2]")), "prompt 0 is not a list of token ids");
  EXPECT_EQ(error(json("[[1], []]")), "prompt 1 is empty; it needs at least one token");
  EXPECT_EQ(error(json("[[1, 2.5]]")), "prompt 0 holds 2.5, which is not a token id");
  EXPECT_EQ(error(json("[[1, \"x\"]]")), "prompt 0 holds \"x\", which is not a token id");
  EXPECT_EQ(error(json("[[1, 10]]")), "prompt 0: token 10 at position 1 is outside the vocabulary of 10 entries");
  EXPECT_EQ(error(json("[[18446744073709551615]]")),
            "prompt 0: token 18446744073709551615 at position 0 is outside the vocabulary of 10 entries");
  EXPECT_EQ(error(json("[[-1]]")), "prompt 0: token -1 at position 0 is outside the vocabulary of 10 entries");
  EXPECT_EQ(error(tensor<float>("prompt.0.tokens", DType::f32, {1}, {1})),
            "tensor prompt.0.tokens is F32 with 1 dimensions; it must be I32 or I64 with one");
  EXPECT_EQ(error(tensor<int32_t>("prompt.0.tokens", DType::i32, {1, 1}, {1})),
            "tensor prompt.0.tokens is I32 with 2 dimensions; it must be I32 or I64 with one");
  EXPECT_EQ(error(tensor<int32_t>("tokens", DType::i32, {1}, {1})),
            "holds no prompts; expected tensors prompt.0.tokens, ... or a JSON list of lists of ids");
  EXPECT_EQ(error(tensor<int64_t>("prompt.0.tokens", DType::i64, {1}, {int64_t{1} << 40})),
            "prompt 0: token 1099511627776 at position 0 is outside the vocabulary of 10 entries");
}

// Two names of one number would run as one prompt.
TEST_F(TokenFileTest, PromptNumbersHaveOneForm) {
  for (const char* digits : {"00", "01", "+1", "-1", "-0", "", "1.0", "0x1", "a", " 1", "9223372036854775808"}) {
    const std::string name = "prompt." + std::string(digits) + ".tokens";
    EXPECT_EQ(error(tensor<int32_t>(name, DType::i32, {1}, {1})),
              "tensor " + name + ": \"" + digits + "\" is no prompt number; it must be digits without a leading zero");
  }
  // What a golden file holds besides is passed over.
  const int32_t id = 7;
  const float value = 0.5F;
  const auto ids = std::as_bytes(std::span(&id, 1));
  const checkpoint::TensorToWrite tensors[] = {
      {"prompt.10.tokens", DType::i32, {1}, ids},
      {"prompt.10.greedy_tokens", DType::i32, {1}, ids},
      {"prompt.010.margins", DType::f32, {1}, std::as_bytes(std::span(&value, 1))}};
  checkpoint::write_safetensors(folder_ / "golden.safetensors", tensors);
  EXPECT_EQ(read_token_file(folder_ / "golden.safetensors", 10).prompts, (Prompts{{10, {7}}}));
}

}  // namespace
}  // namespace trireme::cli
