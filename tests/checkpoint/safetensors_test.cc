#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/tiny.h"

namespace trireme::checkpoint {
namespace {

using testing::bad_input;
using testing::raw_safetensors;
using testing::TemporaryFolder;

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), static_cast<int64_t>(file.size()), "a.safetensors");
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, ReadsWhatItWrites) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> codes = {9, 8, 7};
  const auto path = folder.path() / "x.safetensors";
  write_safetensors(path,
                    std::vector<TensorToWrite>{{"b.values", DType::f32, {2, 3}, std::as_bytes(std::span(values))},
                                               {"a.codes", DType::u8, {3}, std::as_bytes(std::span(codes))},
                                               {"empty", DType::i64, {0, 4}, {}}},
                    {{"format", "pt"}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  const TensorInfo& info = file.tensors().at("b.values");
  EXPECT_EQ(info.dtype, DType::f32);
  EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(info.begin % 8, 0);
  EXPECT_EQ(std::memcmp(file.bytes(info).data(), values.data(), 24), 0);
  EXPECT_EQ(file.bytes(file.tensors().at("a.codes"))[2], std::byte{7});
  EXPECT_TRUE(file.bytes(file.tensors().at("empty")).empty());
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".part"));
}

TEST(Safetensors, WriterRefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2};
  const auto bytes = std::as_bytes(std::span(values));
  const auto write = [&](std::vector<TensorToWrite> tensors) {
    write_safetensors(folder.path() / "x.safetensors", tensors);
  };
  EXPECT_NE(bad_input([&] { write({{"x", DType::f32, {3}, bytes}}); }).find("tensor x"), std::string::npos);
  EXPECT_NE(bad_input([&] {
              write({{"x", DType::f32, {2}, bytes}, {"x", DType::f32, {2}, bytes}});
            }).find("tensor x"),
            std::string::npos);
  EXPECT_THROW(write_safetensors(folder.path() / "absent" / "x", std::vector<TensorToWrite>{}), Failure);
  const TensorHeader header{"x", "F32", {2}, 8};
  {
    SafetensorsWriter writer(folder.path() / "y.safetensors", {&header, 1}, {});
    writer.write(bytes.first(4));
    EXPECT_THROW(writer.finish(), Failure);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // neither the file nor its temporary
}

TEST(Safetensors, ForeignDtypesAreKeptApart) {
  const auto header = parse(raw_safetensors(
      R"({"x":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"y":{"dtype":"U8","shape":[],"data_offsets":[16,17]}})",
      17));
  EXPECT_EQ(header.foreign.at("x").dtype, "F64");
  EXPECT_EQ(header.tensors.at("y").begin - header.foreign.at("x").info.begin, 16);
  EXPECT_TRUE(header.tensors.at("y").shape.empty());
}

TEST(Safetensors, HeaderMayBePaddedAndAnEmptyFileIsLegal) {
  EXPECT_TRUE(parse(raw_safetensors("{}", 0)).tensors.empty());
  EXPECT_EQ(parse(raw_safetensors(one("\"U8\"", "[3]", "[0,3]") + "     ", 3)).tensors.size(), 1U);
}

struct Malformed {
  const char* kind;
  std::string file;
  const char* says;
};

TEST(Safetensors, EveryMalformedHeaderNamesWhatIsWrong) {
  const std::string good = raw_safetensors(one("\"U8\"", "[3]", "[0,3]"), 3);
  std::string too_long = good;
  too_long[1] = 1;
  std::string huge = good;
  huge[7] = '\x7f';
  const Malformed cases[] = {
      {"empty file", "", "header length"},
      {"seven bytes", "1234567", "it has 7 bytes"},
      {"length beyond the file", too_long, "bytes follow"},
      {"absurd length", huge, "at most 100000000"},
      {"cut in the header", good.substr(0, 20), "bytes follow"},
      {"no header", raw_safetensors("", 0), "not a JSON object"},
      {"array", raw_safetensors("[1]", 0), "not a JSON object"},
      {"not JSON", raw_safetensors("{nonsense}", 0), "not valid JSON"},
      {"cut JSON", raw_safetensors(R"({"x":{)", 0), "not valid JSON"},
      {"bytes after the JSON", raw_safetensors("{} {}", 0), "not valid JSON"},
      {"not UTF-8", raw_safetensors("{\"\xff\xfe\":1}", 0), "not valid JSON"},
      {"deep nesting", raw_safetensors(R"({"x":)" + std::string(100000, '['), 0), "not valid JSON"},
      {"name twice", raw_safetensors(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{}})", 0),
       "key x is there twice"},
      {"metadata no object", raw_safetensors(R"({"__metadata__":[]})", 0), "__metadata__"},
      {"metadata no string", raw_safetensors(R"({"__metadata__":{"format":1}})", 0), "__metadata__ format"},
      {"entry no object", raw_safetensors(R"({"x":3})", 0), "tensor x"},
      {"no dtype", raw_safetensors(R"({"x":{"shape":[],"data_offsets":[0,0]}})", 0), "tensor x: dtype"},
      {"dtype no string", raw_safetensors(one("7", "[3]", "[0,3]"), 3), "tensor x: dtype"},
      {"unknown dtype", raw_safetensors(one("\"Q8\"", "[3]", "[0,3]"), 3), "tensor x: its dtype Q8"},
      {"no shape", raw_safetensors(R"({"x":{"dtype":"U8","data_offsets":[0,0]}})", 0), "tensor x: shape"},
      {"negative size", raw_safetensors(one("\"U8\"", "[-3]", "[0,3]"), 3), "tensor x: shape"},
      {"fractional size", raw_safetensors(one("\"U8\"", "[3.0]", "[0,3]"), 3), "tensor x: shape"},
      {"size over 63 bits", raw_safetensors(one("\"U8\"", "[18446744073709551615]", "[0,3]"), 3), "tensor x: shape"},
      {"product overflows", raw_safetensors(one("\"F32\"", "[4611686018427387904,4]", "[0,0]"), 0), "too many"},
      {"no offsets", raw_safetensors(R"({"x":{"dtype":"U8","shape":[0]}})", 0), "tensor x: data_offsets"},
      {"three offsets", raw_safetensors(one("\"U8\"", "[3]", "[0,3,3]"), 3), "tensor x: data_offsets"},
      {"negative offset", raw_safetensors(one("\"U8\"", "[3]", "[-1,2]"), 3), "tensor x: data_offsets"},
      {"end before begin", raw_safetensors(one("\"U8\"", "[3]", "[3,0]"), 3), "tensor x: data_offsets are [3, 0]"},
      {"end behind the file", raw_safetensors(one("\"U8\"", "[4]", "[0,4]"), 3), "the file has 3 bytes"},
      {"size against offsets", raw_safetensors(one("\"F32\"", "[1]", "[0,3]"), 3),
       "takes 4 bytes; data_offsets give it 3"},
      {"overlap",
       raw_safetensors(
           R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"y":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           4),
       "tensors x and y overlap"},
      {"hole",
       raw_safetensors(
           R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           3),
       "1 bytes before tensor y"},
      {"hole at the begin", raw_safetensors(one("\"U8\"", "[2]", "[1,3]"), 3), "1 bytes before tensor x"},
      {"bytes at the end", raw_safetensors(one("\"U8\"", "[3]", "[0,3]"), 5), "2 bytes at its end"},
      {"line break in a name", raw_safetensors("{\"a\\nb\":3}", 0), "tensor a\\nb"},
  };
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.kind);
    const std::string message = bad_input([&] { parse(malformed.file); });
    EXPECT_NE(message.find(malformed.says), std::string::npos) << message;
    EXPECT_EQ(message.rfind("a.safetensors", 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_NO_THROW(parse(good));
}

TEST(Safetensors, FilesThatCannotBeMapped) {
  const TemporaryFolder folder;
  testing::write_file(folder.path() / "short.safetensors", "abc");
  for (const char* name : {"absent.safetensors", "short.safetensors", "."}) {
    EXPECT_NE(bad_input([&] { SafetensorsFile file(folder.path() / name); }).find(name), std::string::npos);
  }
}

// A pipe without a writer must not be waited for.
TEST(Safetensors, PipesAreRefused) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe.safetensors";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(bad_input([&] { SafetensorsFile file(pipe); }).find("it is not a regular file"), std::string::npos);
}

// A rename onto a device, which root is allowed, would put a file in its place.
TEST(Safetensors, WriterLeavesWhatIsNoFile) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder.path() / "link");
  for (const char* name : {"pipe", "link"}) {
    const auto write = [&] { write_safetensors(folder.path() / name, std::vector<TensorToWrite>{}); };
    EXPECT_NE(bad_input(write).find("not a regular file"), std::string::npos) << name;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link"));
  const auto count = [&] {
    const std::filesystem::directory_iterator entries(folder.path());
    return std::distance(begin(entries), end(entries));
  };
  EXPECT_EQ(count(), 2);  // no ".part" either
}

// Third-party files with a scalar, an empty tensor, four dimensions and quotes in a name.
TEST(Safetensors, ReadsFilesOfAnotherWriter) {
  const std::filesystem::path dir = TRIREME_SOURCE_DIR "/../shared/fixtures/kimi-k3-in-c/st";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is absent";
  const SafetensorsFile first(dir / "model-00001-of-00002.safetensors");
  EXPECT_EQ(first.tensors().at("scalar.f32").bytes(), 4);
  EXPECT_EQ(first.tensors().at("empty.f32").shape, (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(first.tensors().at("rank4.u8").shape.size(), 4U);
  EXPECT_EQ(first.tensors().count("__metadata__"), 0U);
  const SafetensorsFile second(dir / "model-00002-of-00002.safetensors");
  EXPECT_EQ(second.tensors().at("weird\\name.\"with\"quotes").shape, (std::vector<int64_t>{3}));
}

}  // namespace
}  // namespace trireme::checkpoint
