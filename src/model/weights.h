// Weights of the text model in memory: matrices packed for a backend, small tensors as float32.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ledger/ledger.h"
#include "ops/ops.h"

namespace trireme::model {

using ops::PackedMatrix;

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
  PackedMatrix q, k, v;                  // [width, hidden]
  Vector conv;                           // [3 * width][taps]: q, k, v
  PackedMatrix f_a, f_b;                 // decay projection: [dim, hidden], [width, dim]
  Vector a_log, dt_bias;                 // [heads], [width]
  PackedMatrix b;                        // write strength: [heads, hidden]
  std::optional<PackedMatrix> g;         // output gate: [width, hidden]
  std::optional<PackedMatrix> g_a, g_b;  // or low rank: [dim, hidden], [width, dim]
  Vector o_norm;                         // [dim]
  PackedMatrix o;                        // [hidden, width]
};

struct MlaWeights {
  std::optional<PackedMatrix> q_a;  // [q_lora, hidden]; absent: q_b reads the hidden state
  Vector q_a_norm;                  // [q_lora]
  PackedMatrix q_b;                 // [heads * (nope + rope), q_lora or hidden]
  PackedMatrix kv_a;                // [kv_lora + rope, hidden]
  Vector kv_a_norm;                 // [kv_lora]
  std::vector<PackedMatrix> kc;     // one a head, [kv_lora, nope]: kv_b's key rows, transposed
  std::vector<PackedMatrix> vc;     // one a head, [value, kv_lora]: kv_b's value rows
  std::optional<PackedMatrix> g;    // output gate: [heads * value, hidden]
  PackedMatrix o;                   // [hidden, heads * value]
};

// A gated MLP: the dense one and the shared expert.
struct MlpWeights {
  PackedMatrix gate, up;  // [inter, hidden]
  PackedMatrix down;      // [hidden, inter]
};

struct MoeWeights {
  PackedMatrix router;                                 // [experts, hidden]
  Vector bias;                                         // [experts]
  std::optional<PackedMatrix> latent_down, latent_up;  // [latent, hidden], [hidden, latent]
  std::optional<Vector> latent_norm;                   // [latent]
  std::vector<ops::Expert> experts;
  std::optional<MlpWeights> shared;
};

struct LayerWeights {
  std::optional<Vector> attention_score,
      mlp_score;  // scorers of the residual mixes, norm * projection; absent without a bank
  Vector input_norm, post_norm;
  std::variant<KdaWeights, MlaWeights> attention;
  std::variant<MlpWeights, MoeWeights> mlp;
};

struct ModelWeights {
  ops::EmbeddingTable embedding;
  std::vector<LayerWeights> layers;
  std::optional<Vector> output_score;
  Vector norm;
  PackedMatrix head;
};

// Reads and packs every tensor, one after the other; the mapped bytes of each are released as soon as it is packed.
ModelWeights load_weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops, ledger::Account& account);

}  // namespace trireme::model
