#include "checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <malloc.h>

#include "base/error.h"
#include "checkpoint/open.h"
#include "checkpoint/read_ahead.h"

namespace trireme::checkpoint {

struct Checkpoint::State {
  OpenedCheckpoint opened;
  ReadAhead read_ahead;

  const OpenedWeight& find(std::string_view name) const {
    if (name == "lm_head" && opened.config.tied_embeddings) name = "embed_tokens";
    const auto found = opened.weights.find(std::string(name));
    if (found == opened.weights.end()) {
      throw BadInput(fmt::format("{}: the layers {} to {} that were opened have no tensor {}",
                                 opened.directory.string(), opened.layer_begin, opened.layer_end - 1, name));
    }
    return found->second;
  }

  // Asks the kernel for the tensor's bytes and the ones that are needed next.
  void want(const TensorPlace& place) const {
    read_ahead.want(place.file, opened.files[static_cast<size_t>(place.file)], place.info->begin, place.info->end);
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() {
  if (state_ == nullptr) return;
  state_.reset();
  malloc_trim(0);  // names and places of up to half a million tensors leave holes all over the heap
}

Checkpoint Checkpoint::open(const std::filesystem::path& dir) { return open(dir, 0, -1); }

Checkpoint Checkpoint::open(const std::filesystem::path& dir, int64_t layer_begin, int64_t layer_end) {
  auto state = std::make_unique<State>();
  state->opened = open_checkpoint(dir, layer_begin, layer_end);
  std::vector<std::vector<ByteRange>> ranges(state->opened.files.size());
  for (const auto& [name, weight] : state->opened.weights) {
    for (const TensorPlace* place : {&weight.data, &weight.scales}) {
      if (place->info != nullptr)
        ranges[static_cast<size_t>(place->file)].push_back({place->info->begin, place->info->end});
    }
  }
  state->read_ahead.set_ranges(std::move(ranges));
  return Checkpoint(std::move(state));
}

const ModelConfig& Checkpoint::config() const { return state_->opened.config; }
const std::filesystem::path& Checkpoint::directory() const { return state_->opened.directory; }

bool Checkpoint::has(std::string_view name) const {
  if (name == "lm_head" && state_->opened.config.tied_embeddings) name = "embed_tokens";
  return state_->opened.weights.contains(std::string(name));
}

WeightView Checkpoint::stored(std::string_view name) const {
  const OpenedWeight& found = state_->find(name);
  const auto bytes_of = [&](const TensorPlace& place) {
    return state_->opened.files[static_cast<size_t>(place.file)].bytes(*place.info);
  };
  WeightView view;
  view.format = found.format;
  view.rows = found.rows;
  view.cols = found.cols;
  view.data = bytes_of(found.data);
  if (found.scales.info != nullptr) view.scales = bytes_of(found.scales);
  const auto stored = static_cast<size_t>(weight_bytes(found.format, found.rows, found.cols)) - view.scales.size();
  view.data = view.data.first(stored);  // A_log is stored longer
  return view;
}

void Checkpoint::check(std::string_view name, const WeightView& part) const {
  if (const auto wrong = find_bad_code(part)) {
    const OpenedWeight& found = state_->find(name);
    throw BadInput(fmt::format(
        "{}: tensor {}: {}", state_->opened.files[static_cast<size_t>(found.data.file)].path().string(), name, *wrong));
  }
}

WeightView Checkpoint::weight(std::string_view name) const {
  const OpenedWeight& found = state_->find(name);
  for (const TensorPlace* place : {&found.data, &found.scales}) {
    if (place->info != nullptr) state_->want(*place);
  }
  const WeightView view = stored(name);
  check(name, view);
  return view;
}

std::vector<float> Checkpoint::floats(std::string_view name) const {
  const WeightView view = weight(name);
  std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
  widen(view, values);
  return values;
}

void Checkpoint::release(const WeightView& view) const {
  for (const auto& bytes : {view.data, view.scales}) {
    for (const SafetensorsFile& file : state_->opened.files) {
      const int64_t begin = bytes.empty() ? -1 : file.offset_of(bytes);
      if (begin >= 0) file.release(begin, begin + static_cast<int64_t>(bytes.size()));
    }
  }
}

int64_t Checkpoint::bytes_mapped() const {
  int64_t bytes = 0;
  for (const auto& [name, weight] : state_->opened.weights) bytes += weight.bytes();
  return bytes;
}

int64_t Checkpoint::files_opened() const { return static_cast<int64_t>(state_->opened.files.size()); }
int64_t Checkpoint::vision_tensors() const { return state_->opened.vision_tensors; }

std::vector<StoredWeight> Checkpoint::weights() const {
  std::vector<StoredWeight> list;
  for (CatalogueEntry& entry : catalogue(state_->opened.config)) {
    const auto found = state_->opened.weights.find(entry.name);
    if (found == state_->opened.weights.end()) continue;
    const OpenedWeight& weight = found->second;
    int64_t elements = weight.rows * weight.cols;
    if (weight.format != WeightFormat::mxfp4) {
      elements = weight.data.info->bytes() / dtype_bytes(weight.data.info->dtype);
    }
    list.push_back({std::move(entry), weight.format, elements, weight.bytes()});
  }
  return list;
}

std::vector<Shard> Checkpoint::shards() const {
  std::vector<Shard> list;
  for (const SafetensorsFile& file : state_->opened.files) {
    const auto tensors = static_cast<int64_t>(file.tensors().size() + file.header().foreign.size());
    list.push_back({file.path().filename().string(), file.file_bytes(), tensors});
  }
  return list;
}

}  // namespace trireme::checkpoint
