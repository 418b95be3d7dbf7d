// A small K3 checkpoint made in memory, to be bent out of shape and written to a folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace trireme::checkpoint::testing {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// A new empty folder that goes away with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "trireme-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Failure("no temporary folder");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The bytes of a safetensors file with this header and `data_bytes` bytes behind it.
inline std::string raw_safetensors(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file + header + std::string(data_bytes, '\x01');
}

// What a call that must throw BadInput says; empty, and a test failure, if it does not throw.
template <class Call>
std::string bad_input(const Call& call) {
  try {
    call();
  } catch (const BadInput& error) {
    return error.what();
  }
  ADD_FAILURE() << "BadInput was not thrown";
  return "";
}

// Five layers (KDA, KDA, KDA, MLA, MLA; the first dense), every width small and not a multiple of 128.
inline ordered_json tiny_k3_config() {
  return ordered_json::parse(R"({
    "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
    "bos_token_id": 60, "eos_token_id": 61, "pad_token_id": 63, "tie_word_embeddings": false,
    "text_config": {
      "hidden_size": 64, "num_hidden_layers": 5, "vocab_size": 64, "rms_norm_eps": 1e-5, "hidden_act": "situ",
      "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "intermediate_size": 96,
      "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 6, "num_experts_per_token": 2,
      "num_shared_experts": 2, "moe_intermediate_size": 32, "routed_expert_hidden_size": 32,
      "latent_moe_use_norm": true, "moe_renormalize": true, "moe_router_activation_func": "sigmoid",
      "topk_method": "noaux_tc", "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
      "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 40, "kv_lora_rank": 136,
      "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "mla_use_nope": true,
      "mla_use_output_gate": true, "attn_res_block_size": 2, "max_position_embeddings": 4096,
      "num_nextn_predict_layers": 0,
      "linear_attn_config": {"num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
        "use_full_rank_gate": true, "kda_layers": [1, 2, 3], "full_attn_layers": [4, 5]}}})");
}

// The same model as Kimi-Linear: softplus, low-rank gates, SwiGLU, one q_proj, no bank, no latent, no output gate in
// MLA.
inline ordered_json tiny_linear_config() {
  return ordered_json::parse(R"({
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "bos_token_id": 60, "eos_token_id": [61, 62],
    "hidden_size": 64, "num_hidden_layers": 5, "vocab_size": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "intermediate_size": 96, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"], "num_experts": 6,
    "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 32, "moe_renormalize": true,
    "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "num_attention_heads": 3,
    "num_key_value_heads": 3, "q_lora_rank": null, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "model_max_length": 4096, "linear_head_dim": 16, "linear_num_heads": 3,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "linear_attention", "linear_attention",
    "linear_attention", "full_attention"]})");
}

// A stored tensor. Safetensors dtypes are kept as text so that tests can store any.
struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  std::string file;
};

class TinyCheckpoint {
 public:
  explicit TinyCheckpoint(ordered_json model_config = tiny_k3_config()) : config(std::move(model_config)) {
    const ModelConfig parsed = parse_config(config.dump(), "tiny");
    const bool k3 = config.contains("text_config");
    for (const CatalogueEntry& entry : catalogue(parsed)) {
      const bool last_file = entry.layer >= 3 || (entry.layer < 0 && entry.name != "embed_tokens");
      const std::string file = last_file ? "model-2.safetensors" : "model-1.safetensors";
      add_entry(entry,
                (k3 ? "language_model." : "") + std::string(entry.name == "lm_head" ? "" : "model.") + entry.name, file,
                k3);
    }
    if (k3) add("vision_tower.patch_embed.weight", "F32", {2, 2}, "model-1.safetensors");
  }

  ordered_json config;
  std::map<std::string, Tensor> tensors;               // by stored name
  std::map<std::string, std::string> index_overrides;  // "" leaves the tensor out of the index
  std::map<std::string, std::string> files;            // whole files to write instead

  ordered_json& text() { return config.contains("text_config") ? config["text_config"] : config; }

  Tensor& tensor(const std::string& name) {
    if (!tensors.contains(name)) throw Failure("the test names no tensor: " + name);
    return tensors.at(name);
  }
  void rename(const std::string& from, const std::string& to) {
    Tensor moved = tensor(from);
    tensors.erase(from);
    tensors[to] = std::move(moved);
  }
  // Puts deterministic values of the dtype.
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape, const std::string& file) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    tensors[name] = {dtype, std::move(shape), values(name, dtype, count), file};
  }
  // Replaces X.weight by block-FP8 with scales of 0.01.
  void make_fp8(const std::string& weight) {
    Tensor& codes = tensor(weight);
    const int64_t blocks[2] = {(codes.shape[0] + 127) / 128, (codes.shape[1] + 127) / 128};
    codes.dtype = "F8_E4M3";
    codes.bytes = values(weight, "F8_E4M3", codes.shape[0] * codes.shape[1]);
    std::string scales;
    for (int64_t i = 0; i < blocks[0] * blocks[1]; ++i) append(scales, 0.01F * static_cast<float>(i + 1));
    tensors[weight + "_scale_inv"] = {"F32", {blocks[0], blocks[1]}, scales, codes.file};
  }

  void write(const fs::path& dir) const {
    std::map<std::string, std::vector<std::string>> by_file;
    ordered_json map;
    for (const auto& [name, tensor] : tensors) {
      by_file[tensor.file].push_back(name);
      map[name] = tensor.file;
    }
    for (const auto& [name, file] : index_overrides) {
      if (file.empty()) {
        map.erase(name);
      } else {
        map[name] = file;
      }
    }
    for (const auto& [file, names] : by_file) write_shard(dir / file, names);
    write_file(dir / kIndexFile, ordered_json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}).dump());
    write_file(dir / "config.json", config.dump(2));
    for (const auto& [name, text] : files) {
      fs::remove(dir / name);
      if (text != "absent") write_file(dir / name, text);
    }
  }

 private:
  static void append(std::string& bytes, float value) {
    char raw[4];
    std::memcpy(raw, &value, 4);
    bytes.append(raw, 4);
  }

  static std::string values(const std::string& name, const std::string& dtype, int64_t count) {
    std::string bytes;
    const uint64_t seed = std::hash<std::string>()(name);
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(uniform_at(seed, static_cast<uint64_t>(i), 0) - 0.5);
      if (dtype == "F32") {
        append(bytes, value);
      } else if (dtype == "BF16") {
        const uint16_t code = float_to_bf16(value);
        bytes += static_cast<char>(code & 0xff);
        bytes += static_cast<char>(code >> 8);
      } else if (dtype == "F8_E4M3") {
        bytes += static_cast<char>(float_to_e4m3(value * 800));
      } else {
        bytes += static_cast<char>(mix64(seed + static_cast<uint64_t>(i)) & 0x7f);
      }
    }
    return bytes;
  }

  void add_entry(const CatalogueEntry& entry, const std::string& name, const std::string& file, bool k3) {
    const bool bare = name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("e_score_correction_bias");
    if (k3 && entry.group == Group::experts) {
      add(name + ".weight_packed", "U8", {entry.shape[0], entry.shape[1] / 2}, file);
      add(name + ".weight_scale", "U8", {entry.shape[0], entry.shape[1] / 32}, file);
    } else if (name.ends_with("A_log")) {
      add(name, "F32", {entry.shape[0] + entry.padding}, file);
    } else {
      add(name + (bare ? "" : ".weight"), bare || name.ends_with("conv1d") || name.ends_with("o_norm") ? "F32" : "BF16",
          entry.shape, file);
    }
  }

  void write_shard(const fs::path& path, const std::vector<std::string>& names) const {
    std::vector<TensorHeader> headers;
    for (const std::string& name : names) {
      const Tensor& tensor = tensors.at(name);
      headers.push_back({name, tensor.dtype, tensor.shape, static_cast<int64_t>(tensor.bytes.size())});
    }
    SafetensorsWriter writer(path, headers, {{"format", "pt"}});
    for (const std::string& name : names) writer.write(std::as_bytes(std::span(tensors.at(name).bytes)));
    writer.finish();
  }
};

}  // namespace trireme::checkpoint::testing
