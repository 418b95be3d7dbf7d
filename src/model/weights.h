// Weights of the text model in memory: matrices packed for a backend, small tensors as float32.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "layout/share.h"
#include "ledger/ledger.h"
#include "ops/ops.h"

namespace trireme::model {

using ops::PackedMatrix;

// A linear map of a layer: the whole matrix, the part of it that belongs to the rank's heads, or a block of its output
// rows in the weight shard.
struct Projection {
  PackedMatrix own;
  int64_t rows = 0;                           // outputs that callers see
  ops::Output output = ops::Output::rounded;  // how they want them
  int64_t block = -1;                         // number in the layer's ShardedWeights; -1: not sharded
};

// The rank's blocks of one layer's sharded matrices, one after the other as they travel: those of attention first.
struct ShardedWeights {
  struct Block {
    int64_t offset = 0;  // in memory
    int64_t bytes = 0;   // the same on all ranks of the shard
    WeightFormat format = WeightFormat::f32;
    int64_t rows = 0;  // of the whole matrix
    int64_t cols = 0;
    int64_t input = 0;  // blocks of a layer with equal numbers are multiplied with the same rows
    ops::Output output = ops::Output::rounded;
  };
  Buffer memory;
  std::vector<Block> blocks;
  int64_t attention_bytes = 0;
};

// Small float32 tensor.
class Vector {
 public:
  Vector() = default;
  explicit Vector(Buffer buffer) : buffer_(std::move(buffer)) {}
  const float* data() const { return buffer_.as<float>().data(); }
  std::span<float> values() { return buffer_.as<float>(); }

 private:
  Buffer buffer_;
};

struct KdaWeights {
  Projection q, k, v;               // [width, hidden]; width is of the rank's heads, in all of this
  Vector conv;                      // [3 * width][taps]: q, k, v
  PackedMatrix f_a;                 // decay projection: [dim, hidden]
  Projection f_b;                   // [width, dim]
  Vector a_log, dt_bias;            // [heads], [width]
  PackedMatrix b;                   // write strength: [heads, hidden]
  std::optional<Projection> g;      // output gate: [width, hidden]
  std::optional<PackedMatrix> g_a;  // or low rank: [dim, hidden]
  std::optional<Projection> g_b;    // [width, dim]
  Vector o_norm;                    // [dim]
  Projection o;                     // [hidden, width]
};

struct MlaWeights {
  std::optional<PackedMatrix> q_a;  // [q_lora, hidden]; absent: q_b reads the hidden state
  Vector q_a_norm;                  // [q_lora]
  Projection q_b;                   // [query heads * (nope + rope), q_lora or hidden]
  PackedMatrix kv_a;                // [kv_lora + rope, hidden]
  Vector kv_a_norm;                 // [kv_lora]
  std::vector<PackedMatrix> kc;     // one a query head, [kv_lora, nope]: kv_b's key rows, transposed
  std::vector<PackedMatrix> vc;     // one a head, [value, kv_lora]: kv_b's value rows
  std::optional<Projection> g;      // output gate: [heads * value, hidden]
  Projection o;                     // [hidden, heads * value]
};

// A gated MLP: the dense one and the shared expert.
struct MlpWeights {
  Projection gate, up;  // [inter, hidden]
  Projection down;      // [hidden, inter]
};

struct MoeWeights {
  PackedMatrix router;                               // [experts, hidden]
  Vector bias;                                       // [experts]
  std::optional<Projection> latent_down, latent_up;  // [latent, hidden], [hidden, latent]
  std::optional<Vector> latent_norm;                 // [latent]
  std::vector<ops::Expert> experts;                  // the rank's, from first_expert on
  int64_t first_expert = 0;
  std::optional<MlpWeights> shared;
};

struct LayerWeights {
  std::optional<Vector> attention_score,
      mlp_score;  // scorers of the residual mixes, norm * projection; absent without a bank
  Vector input_norm, post_norm;
  std::variant<KdaWeights, MlaWeights> attention;
  std::variant<MlpWeights, MoeWeights> mlp;
  ShardedWeights sharded;
};

struct ModelWeights {
  ops::EmbeddingTable embedding;     // the rank's vocabulary rows; first stage
  std::vector<LayerWeights> layers;  // of the stage
  std::optional<Vector> output_score;
  Vector norm;
  PackedMatrix head;  // the rank's vocabulary rows; last stage
};

// Reads and packs what `share` gives this rank, one tensor after the other; the mapped bytes of each are released as
// soon as it is packed.
ModelWeights load_weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account,
                          const layout::RankShare& share);

}  // namespace trireme::model
