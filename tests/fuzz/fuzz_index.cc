// Any text as model.safetensors.index.json: either BadInput, or plain file names; and any tensor name can be read.
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "checkpoint/names.h"
#include "checkpoint/shard_index.h"
#include "fuzz/seeds.h"

namespace {

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> kSeeds = {
      R"({"metadata":{"total_size":3},"weight_map":{"language_model.model.layers.0.self_attn.A_log":"model-00001-of-00002.safetensors","model.layers.1.block_sparse_moe.experts.3.w1.weight_packed":"b.safetensors"}})",
      R"({"weight_map":{"lm_head.weight":"a.safetensors","model.layers.12.mlp_res.proj_weight":"a.safetensors","vision_tower.x":"a.safetensors"}})",
      R"({"weight_map":{"model.layers.99999999999999999999.mlp.gate_proj.weight_scale_inv":"../a.safetensors"}})"};
  return kSeeds;
}

trireme::checkpoint::ModelConfig small_config() {
  trireme::checkpoint::ModelConfig config;
  config.layers = 13;
  config.first_dense = 1;
  return config;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_from_seeds(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  const ModelConfig config = small_config();
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_stored_name(text, config);
  try {
    for (const auto& [tensor, file] : parse_shard_index(text, "index").files) {
      if (file.find('/') != std::string::npos || file.find("..") == 0) std::abort();
      const StoredName name = read_stored_name(tensor, config);
      if (name.kind == NameKind::text && name.entry.size() > tensor.size() + 20) std::abort();
    }
  } catch (const BadInput& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
