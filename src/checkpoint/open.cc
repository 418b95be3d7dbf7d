#include "checkpoint/open.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/names.h"
#include "checkpoint/shard_index.h"

namespace trireme::checkpoint {
namespace {

constexpr size_t kParts = 4;

// The stored tensors that claim to be one catalogue entry, by Part: pointers to items of ShardIndex::files.
struct Claim {
  std::array<const std::pair<const std::string, std::string>*, kParts> parts{};
  const auto* part(Part which) const { return parts[static_cast<size_t>(which)]; }
};

using Claims = std::unordered_map<std::string, Claim>;

void check_layers(const ModelConfig& config, const std::filesystem::path& dir, int64_t begin, int64_t end) {
  if (begin < 0 || begin >= end || end > config.layers) {
    throw BadInput(fmt::format("{}: layers {} to {} were asked for; the model has layers 0 to {}", dir.string(), begin,
                               end - 1, config.layers - 1));
  }
}

// Every stored name must be of the catalogue or of the vision model.
Claims claim_names(const ShardIndex& index, const std::vector<CatalogueEntry>& entries, OpenedCheckpoint& opened) {
  Claims claims;
  claims.reserve(entries.size());
  for (const CatalogueEntry& entry : entries) claims.emplace(entry.name, Claim());
  for (const auto& item : index.files) {
    const StoredName name = read_stored_name(item.first, opened.config);
    if (name.kind == NameKind::vision) {
      ++opened.vision_tensors;
      continue;
    }
    if (name.kind == NameKind::modelopt) {
      throw BadInput(fmt::format(
          "{}: tensor {} is of a ModelOpt checkpoint (NVFP4, FP8_PB_WO), which is not supported; use MXFP4, "
          "block-FP8 or BF16",
          index.where, printable(item.first)));
    }
    const auto found = name.kind == NameKind::text ? claims.find(name.entry) : claims.end();
    if (found == claims.end()) {
      throw BadInput(fmt::format("{}: tensor {} is no part of the model that config.json describes", index.where,
                                 printable(item.first)));
    }
    auto& place = found->second.parts[static_cast<size_t>(name.part)];
    if (place != nullptr) {
      throw BadInput(fmt::format("{}: tensors {} and {} are both {}{}", index.where, place->first, item.first,
                                 name.entry, part_suffix(name.part)));
    }
    place = &item;
  }
  return claims;
}

// Which parts exist must make one format. Returns nothing; throws what is missing or too much.
void check_claim(const CatalogueEntry& entry, const Claim& claim, const std::string& where) {
  const bool value = claim.part(Part::value) != nullptr;
  const bool codes = claim.part(Part::mx_codes) != nullptr;
  const bool mx = claim.part(Part::mx_scales) != nullptr;
  const bool fp8 = claim.part(Part::fp8_scales) != nullptr;
  const auto fail = [&](std::string_view what) {
    throw BadInput(fmt::format("{}: tensor {}: {}", where, entry.name, what));
  };
  if (!value && !codes) fail("it is missing (neither weight nor weight_packed is there)");
  if (value && codes) fail("both weight and weight_packed are there; it must be one of them");
  if (codes && !mx) fail("weight_packed is there without weight_scale");
  if (value && mx)
    fail("weight_scale is there without weight_packed; ModelOpt FP8 is not supported, block-FP8 has weight_scale_inv");
  if (codes && fp8) fail("weight_scale_inv is there beside weight_packed");
  if ((codes || fp8) && !entry.quantizable) fail("it must be F32, F16 or BF16, not MXFP4 or block-FP8");
}

class Opener {
 public:
  Opener(OpenedCheckpoint& opened, const ShardIndex& index) : opened_(opened), index_(index) {}

  void open_files(const std::set<std::string>& names) {
    for (const std::string& name : names) {
      const auto path = opened_.directory / name;
      std::error_code error;
      if (!std::filesystem::exists(path, error)) {
        throw BadInput(fmt::format("{}: it names the file {}, which is not in the folder", index_.where, name));
      }
      numbers_.emplace(name, static_cast<int64_t>(opened_.files.size()));
      opened_.files.emplace_back(path);
      check_against_index(opened_.files.back(), name);
    }
  }

  void add(const CatalogueEntry& entry, const Claim& claim) {
    OpenedWeight weight;
    set_dimensions(entry, weight);
    if (const auto* codes = claim.part(Part::mx_codes)) {
      add_mxfp4(entry, *codes, *claim.part(Part::mx_scales), weight);
    } else if (const auto* scales = claim.part(Part::fp8_scales)) {
      add_fp8(entry, *claim.part(Part::value), *scales, weight);
    } else {
      add_plain(entry, *claim.part(Part::value), weight);
    }
    opened_.weights.emplace(entry.name, weight);
  }

 private:
  using Item = std::pair<const std::string, std::string>;

  // A file must hold nothing that the index puts elsewhere or does not know.
  void check_against_index(const SafetensorsFile& file, const std::string& name) const {
    const auto check = [&](const std::string& tensor) {
      const auto found = index_.files.find(tensor);
      if (found == index_.files.end()) {
        throw BadInput(fmt::format("{}: tensor {} is in the file but not in {}", file.path().string(),
                                   printable(tensor), kIndexFile));
      }
      if (found->second != name) {
        throw BadInput(fmt::format("{}: tensor {} is in the file but {} puts it into {}", file.path().string(),
                                   printable(tensor), kIndexFile, found->second));
      }
    };
    for (const auto& [tensor, info] : file.tensors()) check(tensor);
    for (const auto& [tensor, foreign] : file.header().foreign) check(tensor);
  }

  static void set_dimensions(const CatalogueEntry& entry, OpenedWeight& weight) {
    weight.rows = entry.shape.size() == 1 ? 1 : entry.shape.front();
    weight.cols = entry.elements() / weight.rows;
  }

  TensorPlace place(const Item& item) const {
    const int64_t number = numbers_.at(item.second);
    const SafetensorsFile& file = opened_.files[static_cast<size_t>(number)];
    const auto found = file.tensors().find(item.first);
    if (found != file.tensors().end()) return {number, &found->second};
    const auto foreign = file.header().foreign.find(item.first);
    if (foreign != file.header().foreign.end()) {
      throw BadInput(fmt::format("{}: tensor {} is {}; it must be F32, F16, BF16, F8_E4M3 or U8", file.path().string(),
                                 item.first, foreign->second.dtype));
    }
    throw BadInput(fmt::format("{}: tensor {} is not in the file although {} says so", file.path().string(),
                               printable(item.first), kIndexFile));
  }

  [[noreturn]] void fail(const Item& item, const std::string& what) const {
    throw BadInput(fmt::format("{}: tensor {}: {}", (opened_.directory / item.second).string(), item.first, what));
  }

  void check_dtype(const Item& item, const TensorInfo& info, DType dtype) const {
    if (info.dtype != dtype)
      fail(item, fmt::format("it is {}; it must be {}", dtype_name(info.dtype), dtype_name(dtype)));
  }

  void check_shape(const Item& item, const TensorInfo& info, const std::vector<int64_t>& shape) const {
    if (info.shape != shape) {
      fail(item, fmt::format("its shape is [{}]; config.json makes it [{}]", fmt::join(info.shape, ", "),
                             fmt::join(shape, ", ")));
    }
  }

  void add_mxfp4(const CatalogueEntry& entry, const Item& codes, const Item& scales, OpenedWeight& weight) const {
    weight.format = WeightFormat::mxfp4;
    weight.data = place(codes);
    weight.scales = place(scales);
    if (weight.cols % kMxBlock != 0) {
      fail(codes, fmt::format("MXFP4 needs a multiple of {} inputs; config.json makes {} [{}]", kMxBlock, entry.name,
                              fmt::join(entry.shape, ", ")));
    }
    check_dtype(codes, *weight.data.info, DType::u8);
    check_dtype(scales, *weight.scales.info, DType::u8);
    check_shape(codes, *weight.data.info, {weight.rows, weight.cols / 2});
    check_shape(scales, *weight.scales.info, {weight.rows, weight.cols / kMxBlock});
  }

  void add_fp8(const CatalogueEntry& entry, const Item& codes, const Item& scales, OpenedWeight& weight) const {
    weight.format = WeightFormat::fp8_block;
    weight.data = place(codes);
    weight.scales = place(scales);
    check_dtype(codes, *weight.data.info, DType::f8_e4m3);
    check_dtype(scales, *weight.scales.info, DType::f32);
    check_shape(codes, *weight.data.info, entry.shape);
    check_shape(scales, *weight.scales.info,
                {(weight.rows + kFp8Block - 1) / kFp8Block, (weight.cols + kFp8Block - 1) / kFp8Block});
  }

  void add_plain(const CatalogueEntry& entry, const Item& item, OpenedWeight& weight) const {
    weight.data = place(item);
    const TensorInfo& info = *weight.data.info;
    switch (info.dtype) {
      case DType::f32:
        weight.format = WeightFormat::f32;
        break;
      case DType::f16:
        weight.format = WeightFormat::f16;
        break;
      case DType::bf16:
        weight.format = WeightFormat::bf16;
        break;
      case DType::f8_e4m3:
        fail(item, "it is F8_E4M3 but there is no weight_scale_inv");
      default:
        fail(item, fmt::format("it is {}; it must be F32, F16 or BF16", dtype_name(info.dtype)));
    }
    if (!entry.name.ends_with(".A_log")) {
      check_shape(item, info, entry.shape);
    } else if (info.bytes() / dtype_bytes(info.dtype) < weight.cols) {
      // Releases pad A_log, and Kimi-Linear stores it as [1, 1, heads, 1]: the first `heads` elements count.
      fail(item, fmt::format("its shape is [{}]; it must have at least {} elements, one a head",
                             fmt::join(info.shape, ", "), weight.cols));
    }
  }

  OpenedCheckpoint& opened_;
  const ShardIndex& index_;
  std::map<std::string, int64_t> numbers_;  // file name -> index into opened_.files
};

bool is_needed(const CatalogueEntry& entry, const OpenedCheckpoint& opened) {
  if (entry.layer >= 0) return entry.layer >= opened.layer_begin && entry.layer < opened.layer_end;
  const bool last = opened.layer_end == opened.config.layers;
  if (entry.group == Group::embedding) return opened.layer_begin == 0 || (last && opened.config.tied_embeddings);
  return last;
}

}  // namespace

OpenedCheckpoint open_checkpoint(const std::filesystem::path& dir, int64_t layer_begin, int64_t layer_end) {
  OpenedCheckpoint opened;
  opened.directory = dir;
  opened.config = read_config(dir);
  opened.layer_begin = layer_begin;
  opened.layer_end = layer_end == -1 ? opened.config.layers : layer_end;
  check_layers(opened.config, dir, opened.layer_begin, opened.layer_end);
  const auto entries = catalogue(opened.config);
  const ShardIndex index = read_shard_index(dir);
  const Claims claims = claim_names(index, entries, opened);
  std::set<std::string> files;
  for (const CatalogueEntry& entry : entries) {
    const Claim& claim = claims.at(entry.name);
    check_claim(entry, claim, index.where);
    if (!is_needed(entry, opened)) continue;
    for (const auto* item : claim.parts) {
      if (item != nullptr) files.insert(item->second);
    }
  }
  Opener opener(opened, index);
  opener.open_files(files);
  for (const CatalogueEntry& entry : entries) {
    if (is_needed(entry, opened)) opener.add(entry, claims.at(entry.name));
  }
  return opened;
}

}  // namespace trireme::checkpoint
