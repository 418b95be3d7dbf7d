// What a weight shard sends each way, by rows a rank: for a checkpoint as it is packed, and for Kimi K3 by its numbers
// alone. No weights are read, nothing is timed.
//   build/bench/bench_shard_crossover models/k3-nano
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "layout/traffic.h"
#include "ops/select.h"

namespace {

using namespace trireme;

constexpr int64_t kRanks = 8;
constexpr int64_t kRows[] = {1, 4, 16, 80, 256, 1024};

layout::RankShare share_of_eight() {
  layout::RankShare share;
  share.weights = {0, kRanks};
  return share;
}

// The shapes of Kimi K3.
checkpoint::ModelConfig k3() {
  checkpoint::ModelConfig c;
  c.hidden = 7168;
  c.layers = 93;
  c.vocab = 163840;
  for (int64_t l = 0; l < c.layers; ++l) {
    c.kinds.push_back(l % 4 == 3 || l == 92 ? checkpoint::LayerKind::mla : checkpoint::LayerKind::kda);
  }
  c.residual_block = 12;
  c.dense_inter = 33792;
  c.first_dense = 1;
  c.kda.heads = 96;
  c.kda.dim = 128;
  c.kda.full_rank_gate = true;
  c.mla.heads = 96;
  c.mla.q_lora = 1536;
  c.mla.kv_lora = 512;
  c.mla.nope = c.mla.value = 128;
  c.mla.rope = 64;
  c.mla.output_gate = true;
  c.moe.experts = 896;
  c.moe.top_k = 16;
  c.moe.inter = 3072;
  c.moe.shared_inter = 6144;
  c.moe.latent = 3584;
  c.moe.latent_norm = true;
  return c;
}

// f_b_proj stays BF16 in the FP8 release.
int64_t k3_bytes(const checkpoint::CatalogueEntry& entry, int64_t rows, bool fp8) {
  const bool coded = fp8 && !entry.name.ends_with("f_b_proj");
  return weight_bytes(coded ? WeightFormat::fp8_block : WeightFormat::bf16, rows, entry.shape[1]);
}

std::string in_mb(int64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / 1e6); }

void print(const std::string& title, const checkpoint::ModelConfig& config, comm::Wire wire,
           const layout::PackedBytes& bytes) {
  struct Row {
    const layout::ShardHalf* half;
    int64_t layers = 0;
  };
  const std::vector<layout::ShardLayer> layers = layout::shard_layers(config, share_of_eight(), bytes);
  std::map<std::string, Row> rows;
  for (size_t l = 0; l < layers.size(); ++l) {
    const bool kda = config.kinds[l] == checkpoint::LayerKind::kda;
    for (const size_t half : {0U, 1U}) {
      if (layers[l][half].blocks.empty()) continue;
      Row& row = rows[half == 1 ? "MLP" : kda ? "attention, KDA" : "attention, MLA"];
      row.half = &layers[l][half];
      ++row.layers;
    }
  }
  fmt::print("\n{}\n\n| half | layers | gather, MB |", title);
  for (const int64_t n : kRows) fmt::print(" move, {} |", n);
  fmt::print(" gathers from |\n|---|---:|---:|");
  for (size_t i = 0; i <= std::size(kRows); ++i) fmt::print("---:|");
  fmt::print("\n");
  for (const auto& [name, row] : rows) {
    fmt::print("| {} | {} | {} |", name, row.layers, in_mb(row.half->gather(kRanks)));
    for (const int64_t n : kRows) fmt::print(" {} |", in_mb(row.half->move(kRanks, n, wire)));
    fmt::print(" {} |\n", row.half->crossover(kRanks, wire));
  }
  int64_t gathered = 0;
  std::vector<int64_t> chosen(std::size(kRows), 0);
  for (const layout::ShardLayer& layer : layers) {
    for (const layout::ShardHalf& half : layer) {
      gathered += half.gather(kRanks);
      for (size_t i = 0; i < chosen.size(); ++i) {
        chosen[i] += std::min(half.gather(kRanks), half.move(kRanks, kRows[i], wire));
      }
    }
  }
  fmt::print("| a step, the smaller way of each | | {} |", in_mb(gathered));
  for (const int64_t bytes_sent : chosen) fmt::print(" {} |", in_mb(bytes_sent));
  fmt::print(" |\n");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} CHECKPOINT\n", argv[0]);
    return 2;
  }
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(argv[1]);
  ThreadPool pool(1);
  const auto ops = ops::make_ops("auto", ops::Precision::bf16, pool);
  print(fmt::format("{}, {} ranks, bf16, as {} packs it:", argv[1], kRanks, ops->name()), checkpoint.config(),
        comm::Wire::bf16, [&](const checkpoint::CatalogueEntry& entry, int64_t rows) {
          const WeightView stored = checkpoint.stored(entry.name);
          return ops->packed_bytes(stored.format, rows, stored.cols);
        });
  for (const bool fp8 : {false, true}) {
    print(fmt::format("Kimi K3, {} ranks, bf16, weights as {}:", kRanks, fp8 ? "block-FP8" : "BF16"), k3(),
          comm::Wire::bf16, [fp8](const auto& entry, int64_t rows) { return k3_bytes(entry, rows, fp8); });
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
