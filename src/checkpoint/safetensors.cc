#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "checkpoint/json_reader.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

// Bytes of an element of a dtype that is not in DType.
std::optional<int64_t> foreign_dtype_bytes(std::string_view name) {
  constexpr std::pair<std::string_view, int64_t> kForeign[] = {
      {"BOOL", 1}, {"I8", 1},  {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2},
      {"U16", 2},  {"U32", 4}, {"F64", 8},     {"U64", 8},     {"C64", 8},
  };
  for (const auto& [known, bytes] : kForeign) {
    if (known == name) return bytes;
  }
  return std::nullopt;
}

int64_t read_header_length(std::span<const std::byte> bytes, int64_t file_bytes, const std::string& where) {
  if (file_bytes < kLengthBytes || static_cast<int64_t>(bytes.size()) < kLengthBytes) {
    throw BadInput(
        fmt::format("{}: it has {} bytes; a safetensors file begins with an 8-byte header length", where, file_bytes));
  }
  uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(bytes[static_cast<size_t>(i)]) << (8 * i);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    throw BadInput(fmt::format("{}: its header length is {}; at most {} is allowed", where, length, kMaxHeaderBytes));
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes || length > bytes.size() - kLengthBytes) {
    throw BadInput(
        fmt::format("{}: its header length is {} but only {} bytes follow", where, length, file_bytes - kLengthBytes));
  }
  return static_cast<int64_t>(length);
}

std::vector<int64_t> read_shape(const json& entry, const std::string& who) {
  const auto found = entry.find("shape");
  if (found == entry.end() || !found->is_array()) throw BadInput(fmt::format("{}: shape must be a list of sizes", who));
  std::vector<int64_t> shape;
  for (const json& size : *found) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      throw BadInput(fmt::format("{}: shape must hold non-negative integers", who));
    }
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

std::pair<int64_t, int64_t> read_offsets(const json& entry, const std::string& who, int64_t data_bytes) {
  const auto found = entry.find("data_offsets");
  if (found == entry.end() || !found->is_array() || found->size() != 2 || !(*found)[0].is_number_unsigned() ||
      !(*found)[1].is_number_unsigned()) {
    throw BadInput(fmt::format("{}: data_offsets must be two non-negative integers", who));
  }
  const auto begin = (*found)[0].get<uint64_t>();
  const auto end = (*found)[1].get<uint64_t>();
  if (begin > end || end > static_cast<uint64_t>(data_bytes)) {
    throw BadInput(
        fmt::format("{}: data_offsets are [{}, {}]; the file has {} bytes of tensors", who, begin, end, data_bytes));
  }
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end)};
}

// dtype bytes * shape, or nothing if it does not fit.
std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

void read_tensor(SafetensorsHeader& header, const std::string& name, const json& entry, int64_t data_begin,
                 int64_t data_bytes, const std::string& where) {
  const std::string who = fmt::format("{}: tensor {}", where, printable(name));
  if (!entry.is_object()) throw BadInput(fmt::format("{}: its header entry must be an object", who));
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) throw BadInput(fmt::format("{}: dtype must be a string", who));
  const auto& dtype_text = dtype->get_ref<const std::string&>();
  const auto known = dtype_from_name(dtype_text);
  const auto element_bytes = known ? std::optional(dtype_bytes(*known)) : foreign_dtype_bytes(dtype_text);
  if (!element_bytes)
    throw BadInput(fmt::format("{}: its dtype {} is not one of safetensors", who, printable(dtype_text)));
  TensorInfo info;
  info.shape = read_shape(entry, who);
  const auto [begin, end] = read_offsets(entry, who, data_bytes);
  const auto bytes = shape_bytes(info.shape, *element_bytes);
  if (!bytes || *bytes != end - begin) {
    throw BadInput(fmt::format("{}: {} [{}] takes {} bytes; data_offsets give it {}", who, dtype_text,
                               fmt::join(info.shape, ", "), bytes ? std::to_string(*bytes) : "too many", end - begin));
  }
  info.begin = data_begin + begin;
  info.end = data_begin + end;
  if (known) {
    info.dtype = *known;
    header.tensors.emplace(name, std::move(info));
  } else {
    header.foreign.emplace(name, ForeignTensor{dtype_text, std::move(info)});
  }
}

void read_metadata(SafetensorsHeader& header, const json& metadata, const std::string& where) {
  if (!metadata.is_object()) throw BadInput(fmt::format("{}: __metadata__ must be an object of strings", where));
  for (const auto& [key, text] : metadata.items()) {
    if (!text.is_string()) throw BadInput(fmt::format("{}: __metadata__ {} must be a string", where, printable(key)));
    header.metadata.emplace(key, text.get<std::string>());
  }
}

// Tensors must cover the bytes after the header exactly once.
void check_cover(const SafetensorsHeader& header, int64_t data_begin, int64_t file_bytes, const std::string& where) {
  struct Piece {
    int64_t begin, end;
    const std::string* name;
  };
  std::vector<Piece> pieces;
  pieces.reserve(header.tensors.size() + header.foreign.size());
  for (const auto& [name, info] : header.tensors) pieces.push_back({info.begin, info.end, &name});
  for (const auto& [name, tensor] : header.foreign) pieces.push_back({tensor.info.begin, tensor.info.end, &name});
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  int64_t at = data_begin;
  const std::string* before = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.begin < at)
      throw BadInput(fmt::format("{}: tensors {} and {} overlap", where, printable(*before), printable(*piece.name)));
    if (piece.begin > at) {
      throw BadInput(fmt::format("{}: {} bytes before tensor {} belong to no tensor", where, piece.begin - at,
                                 printable(*piece.name)));
    }
    at = piece.end;
    before = piece.name;
  }
  if (at != file_bytes)
    throw BadInput(fmt::format("{}: {} bytes at its end belong to no tensor", where, file_bytes - at));
}

std::string last_error() { return std::strerror(errno); }

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_bytes,
                                           const std::string& where) {
  const int64_t length = read_header_length(bytes, file_bytes, where);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<size_t>(length));
  if (text.empty() || text.front() != '{') throw BadInput(fmt::format("{}: its header is not a JSON object", where));
  const json parsed = parse_json_object(text, where + ": header");
  const int64_t data_begin = kLengthBytes + length;
  SafetensorsHeader header;
  for (const auto& [name, entry] : parsed.items()) {
    if (name == "__metadata__") {
      read_metadata(header, entry, where);
    } else {
      read_tensor(header, name, entry, data_begin, file_bytes - data_begin, where);
    }
  }
  check_cover(header, data_begin, file_bytes, where);
  return header;
}

struct SafetensorsFile::State {
  std::filesystem::path path;
  SafetensorsHeader header;
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (data != nullptr) ::munmap(const_cast<std::byte*>(data), static_cast<size_t>(bytes));
  }

  void map() {
    // Without O_NONBLOCK a pipe in the file's place would be waited for.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) throw BadInput(fmt::format("{}: it cannot be opened: {}", path.string(), last_error()));
    struct stat status {};
    const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    void* mapped = MAP_FAILED;
    if (regular && status.st_size >= kLengthBytes) {
      mapped = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
    }
    const std::string why = last_error();
    ::close(descriptor);
    if (!regular) throw BadInput(fmt::format("{}: it is not a regular file", path.string()));
    if (status.st_size < kLengthBytes) {
      throw BadInput(fmt::format("{}: it has {} bytes; a safetensors file begins with an 8-byte header length",
                                 path.string(), status.st_size));
    }
    if (mapped == MAP_FAILED) throw Failure(fmt::format("{}: it cannot be mapped: {}", path.string(), why));
    data = static_cast<const std::byte*>(mapped);
    bytes = status.st_size;
    ::madvise(mapped, static_cast<size_t>(bytes), MADV_SEQUENTIAL);
  }

  // Advises on [begin, end) widened to multiples of `grain` bytes.
  void advise(int64_t begin, int64_t end, int64_t grain, int advice) const {
    begin = std::max<int64_t>(begin, 0) / grain * grain;
    end = std::min(bytes, (end + grain - 1) / grain * grain);
    if (begin >= end) return;
    // Advice only changes speed and memory; a kernel that refuses it is no error.
    (void)::madvise(const_cast<std::byte*>(data) + begin, static_cast<size_t>(end - begin), advice);
  }
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->map();
  state_->header =
      parse_safetensors_header({state_->data, static_cast<size_t>(state_->bytes)}, state_->bytes, path.string());
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::filesystem::path& SafetensorsFile::path() const { return state_->path; }
const std::map<std::string, TensorInfo>& SafetensorsFile::tensors() const { return state_->header.tensors; }
const SafetensorsHeader& SafetensorsFile::header() const { return state_->header; }
int64_t SafetensorsFile::file_bytes() const { return state_->bytes; }

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  return {state_->data + info.begin, static_cast<size_t>(info.bytes())};
}

void SafetensorsFile::will_need(int64_t begin, int64_t end) const {
  // One call reads no more than the device's read-ahead size, 128 KiB unless configured otherwise.
  constexpr int64_t kPiece = 128 << 10;
  for (int64_t at = std::max<int64_t>(begin, 0) / kPiece * kPiece; at < end; at += kPiece) {
    state_->advise(at, std::min(at + kPiece, end), ::sysconf(_SC_PAGESIZE), MADV_WILLNEED);
  }
}

void SafetensorsFile::release(int64_t begin, int64_t end) const {
  // The kernel maps pages around a fault in windows of 64 KiB; released memory must not creep back with a neighbour's
  // fault, and dropping a page that a neighbour still reads costs it only another fault.
  state_->advise(begin, end, 64 << 10, MADV_DONTNEED);
}

int64_t SafetensorsFile::offset_of(std::span<const std::byte> bytes) const {
  const std::less<> before;
  if (before(bytes.data(), state_->data) || !before(bytes.data(), state_->data + state_->bytes)) return -1;
  return bytes.data() - state_->data;
}

}  // namespace trireme::checkpoint
