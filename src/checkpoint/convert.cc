#include "checkpoint/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr Fp8Group kAllGroups[] = {Fp8Group::attn, Fp8Group::moe, Fp8Group::dense};

// A folder that is being filled; what was put into it is removed again unless keep() is called.
class Output {
 public:
  explicit Output(const fs::path& dir) : dir_(dir), made_(!fs::exists(dir)) {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error) throw Failure(fmt::format("{}: the folder cannot be made: {}", dir.string(), error.message()));
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (kept_) return;
    std::error_code ignored;
    for (const fs::path& file : files_) fs::remove(file, ignored);
    if (made_) fs::remove(dir_, ignored);
  }

  fs::path add(const std::string& name) { return files_.emplace_back(dir_ / name); }
  void keep() { kept_ = true; }

  void write_text(const std::string& name, const std::string& text) {
    const fs::path path = add(name);
    std::ofstream file(path, std::ios::binary);
    file << text << std::flush;
    if (!file) throw Failure(fmt::format("{}: it cannot be written", path.string()));
  }

 private:
  fs::path dir_;
  bool made_;
  bool kept_ = false;
  std::vector<fs::path> files_;
};

void check_folders(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) {
    throw BadInput(fmt::format("{}: it is both the source and the target; give another target folder", to.string()));
  }
  if (fs::exists(to, error) && !fs::is_directory(to, error)) {
    throw BadInput(fmt::format("{}: the target is not a folder", to.string()));
  }
  if (fs::exists(to, error) && !fs::is_empty(to, error)) {
    throw BadInput(fmt::format("{}: the target folder is not empty; give a new or an empty one", to.string()));
  }
}

// The entries to convert, by canonical name.
std::map<std::string, Fp8Group> choose(const Checkpoint& checkpoint, const std::set<Fp8Group>& groups) {
  std::map<std::string, Fp8Group> chosen;
  for (const StoredWeight& weight : checkpoint.weights()) {
    for (const Fp8Group group : groups) {
      if (!in_fp8_group(weight.entry, group)) continue;
      if (weight.format == WeightFormat::fp8_block || weight.format == WeightFormat::mxfp4) {
        throw BadInput(fmt::format("{}: tensor {} is already {}; only F32, F16 and BF16 can be converted",
                                   checkpoint.directory().string(), weight.entry.name,
                                   weight_format_name(weight.format)));
      }
      chosen.emplace(weight.entry.name, group);
    }
  }
  if (chosen.empty())
    throw BadInput(fmt::format("{}: no tensor is of the chosen groups", checkpoint.directory().string()));
  return chosen;
}

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, std::map<std::string, Fp8Group> chosen, Output& output, int threads)
      : checkpoint_(checkpoint), chosen_(std::move(chosen)), output_(output), pool_(threads) {}

  void convert_file(const std::string& name) {
    const SafetensorsFile source(checkpoint_.directory() / name);
    std::vector<Source> sources = in_file_order(source);
    std::vector<TensorHeader> headers;
    for (const Source& tensor : sources) add_headers(tensor, headers);
    SafetensorsWriter writer(output_.add(name), headers, source.header().metadata);
    for (const Source& tensor : sources) {
      if (tensor.entry.empty()) {
        copy(source, *tensor.info, writer);
      } else {
        convert(tensor, writer);
      }
    }
    writer.finish();
    ++report_.files;
    for (const TensorHeader& header : headers) {
      weight_map_.emplace(header.name, name);
      report_.bytes_after += header.bytes;
    }
  }

  void write_index() {
    ordered_json index;
    index["metadata"]["total_size"] = report_.bytes_after;
    index["weight_map"] = weight_map_;
    output_.write_text(kIndexFile, index.dump(2) + "\n");
  }

  const ConvertReport& report() const { return report_; }

 private:
  struct Source {
    std::string name;
    std::string dtype;
    const TensorInfo* info;
    std::string entry;  // canonical name of a matrix to convert; empty: copied
  };

  std::vector<Source> in_file_order(const SafetensorsFile& file) const {
    std::vector<Source> sources;
    for (const auto& [name, info] : file.tensors()) {
      const StoredName stored = read_stored_name(name, checkpoint_.config());
      const bool convert = stored.kind == NameKind::text && chosen_.contains(stored.entry);
      sources.push_back({name, std::string(dtype_name(info.dtype)), &info, convert ? stored.entry : ""});
    }
    for (const auto& [name, foreign] : file.header().foreign)
      sources.push_back({name, foreign.dtype, &foreign.info, ""});
    std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
      return std::tuple(a.info->begin, a.info->end, a.name) < std::tuple(b.info->begin, b.info->end, b.name);
    });
    return sources;
  }

  static void add_headers(const Source& tensor, std::vector<TensorHeader>& headers) {
    if (tensor.entry.empty()) {
      headers.push_back({tensor.name, tensor.dtype, tensor.info->shape, tensor.info->bytes()});
      return;
    }
    const int64_t rows = tensor.info->shape[0];
    const int64_t cols = tensor.info->shape[1];
    const std::vector<int64_t> blocks = {(rows + kFp8Block - 1) / kFp8Block, (cols + kFp8Block - 1) / kFp8Block};
    headers.push_back({tensor.name, "F8_E4M3", {rows, cols}, rows * cols});
    headers.push_back({tensor.name + "_scale_inv", "F32", blocks, blocks[0] * blocks[1] * 4});
  }

  void copy(const SafetensorsFile& file, const TensorInfo& info, SafetensorsWriter& writer) {
    constexpr int64_t kPiece = 16 << 20;
    file.will_need(info.begin, info.end);
    for (int64_t at = 0; at < info.bytes(); at += kPiece) {
      const int64_t count = std::min(kPiece, info.bytes() - at);
      writer.write(file.bytes(info).subspan(static_cast<size_t>(at), static_cast<size_t>(count)));
      file.release(info.begin + at, info.begin + at + count);
    }
    report_.bytes_before += info.bytes();
  }

  void convert(const Source& tensor, SafetensorsWriter& writer) {
    const WeightView view = checkpoint_.weight(tensor.entry);
    const int64_t block_rows = (view.rows + kFp8Block - 1) / kFp8Block;
    const int64_t block_cols = (view.cols + kFp8Block - 1) / kFp8Block;
    std::vector<uint8_t> codes(static_cast<size_t>(view.rows * view.cols));
    std::vector<float> scales(static_cast<size_t>(block_rows * block_cols));
    std::vector<QuantizationError> errors(static_cast<size_t>(block_rows));
    pool_.parallel_for(block_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * kFp8Block;
        const int64_t rows = std::min(kFp8Block, view.rows - row);
        std::vector<float> values(static_cast<size_t>(rows * view.cols));
        widen_rows(view, row, rows, values);
        errors[static_cast<size_t>(block)] =
            quantize_fp8_rows(values, rows, view.cols, std::span(codes).subspan(static_cast<size_t>(row * view.cols)),
                              std::span(scales).subspan(static_cast<size_t>(block * block_cols)));
      }
    });
    writer.write(std::as_bytes(std::span(codes)));
    writer.write(std::as_bytes(std::span(scales)));
    checkpoint_.release(view);
    add_to_report(tensor, errors, static_cast<int64_t>(codes.size() + scales.size() * sizeof(float)));
  }

  void add_to_report(const Source& tensor, const std::vector<QuantizationError>& errors, int64_t bytes_after) {
    ConvertedGroup& group = report_.groups[chosen_.at(tensor.entry)];
    for (const QuantizationError& error : errors) group.error.add(error);
    if (!group.error.finite) {
      throw BadInput(fmt::format("{}: tensor {} holds an infinity or NaN, which cannot be converted",
                                 checkpoint_.directory().string(), tensor.name));
    }
    ++group.tensors;
    group.parameters += tensor.info->shape[0] * tensor.info->shape[1];
    group.bytes_before += tensor.info->bytes();
    group.bytes_after += bytes_after;
    report_.bytes_before += tensor.info->bytes();
  }

  const Checkpoint& checkpoint_;
  std::map<std::string, Fp8Group> chosen_;
  Output& output_;
  ThreadPool pool_;
  std::map<std::string, std::string> weight_map_;
  ConvertReport report_;
};

// Tokenizer files, generation_config.json, LICENSE and whatever else lies beside the tensors.
void copy_other_files(const fs::path& from, Output& output) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.ends_with(".safetensors") || name == kIndexFile || name == "config.json")
      continue;
    std::error_code error;
    const fs::path target = output.add(name);
    fs::copy_file(entry.path(), target, error);
    if (error) throw Failure(fmt::format("{}: it cannot be copied: {}", target.string(), error.message()));
  }
}

}  // namespace

std::string_view fp8_group_name(Fp8Group group) {
  switch (group) {
    case Fp8Group::attn:
      return "attn";
    case Fp8Group::moe:
      return "moe";
    case Fp8Group::dense:
      return "dense";
  }
  return "?";
}

std::set<Fp8Group> parse_fp8_groups(const std::string& list) {
  std::set<Fp8Group> groups;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string part = list.substr(begin, end - begin);
    const auto* found = std::find_if(std::begin(kAllGroups), std::end(kAllGroups),
                                     [&](Fp8Group group) { return fp8_group_name(group) == part; });
    if (found == std::end(kAllGroups)) {
      throw BadInput(fmt::format("--fp8 {}: \"{}\" is not a group; the groups are attn, moe and dense", list, part));
    }
    if (!groups.insert(*found).second) throw BadInput(fmt::format("--fp8 {}: {} is there twice", list, part));
    begin = end + 1;
  }
  return groups;
}

bool in_fp8_group(const CatalogueEntry& entry, Fp8Group group) {
  const std::string last = entry.name.substr(entry.name.rfind('.') + 1);
  const auto last_is = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), last) != names.end();
  };
  switch (group) {
    case Fp8Group::attn:
      if (entry.group == Group::kda) return last_is({"q_proj", "k_proj", "v_proj", "g_proj", "o_proj"});
      return entry.group == Group::mla && entry.shape.size() == 2;
    case Fp8Group::moe:
      return entry.group == Group::shared || (entry.group == Group::latent && entry.shape.size() == 2);
    case Fp8Group::dense:
      return entry.group == Group::dense;
  }
  return false;
}

std::string add_fp8_note(const std::string& config_json, const std::set<Fp8Group>& groups, const std::string& where) {
  parse_json_object(config_json, where);
  ordered_json config = ordered_json::parse(config_json);
  const bool top = config.contains("quantization_config") || !config.contains("text_config");
  ordered_json& quantization = (top ? config : config["text_config"])["quantization_config"];
  ordered_json note = {{"fmt", "e4m3"},
                       {"weight_block_size", {kFp8Block, kFp8Block}},
                       {"scale", "weight_scale_inv"},
                       {"activation_scheme", "dynamic"}};
  if (quantization.is_null()) {
    quantization = note;
    quantization["quant_method"] = "fp8";
  }
  ordered_json names = ordered_json::array();
  for (const Fp8Group group : groups) names.push_back(fp8_group_name(group));
  note["groups"] = names;
  quantization["block_fp8"] = note;
  return config.dump(2) + "\n";
}

ConvertReport convert_to_fp8(const fs::path& from, const fs::path& to, const std::set<Fp8Group>& groups, int threads) {
  check_folders(from, to);
  const Checkpoint checkpoint = Checkpoint::open(from);
  auto chosen = choose(checkpoint, groups);
  const ShardIndex index = read_shard_index(from);
  std::set<std::string> files;
  for (const auto& [tensor, file] : index.files) files.insert(file);
  Output output(to);
  Converter converter(checkpoint, std::move(chosen), output, threads);
  for (const std::string& file : files) converter.convert_file(file);
  const auto config_path = from / "config.json";
  output.write_text("config.json",
                    add_fp8_note(read_text_file(config_path, int64_t{64} << 20), groups, config_path.string()));
  copy_other_files(from, output);
  converter.write_index();
  output.keep();
  return converter.report();
}

}  // namespace trireme::checkpoint
