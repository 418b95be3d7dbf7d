// Kimi Delta Attention, token by token. States are float32 between tokens, sums float64.
#include <algorithm>
#include <vector>

#include "ops/reference/math.h"
#include "ops/reference/reference_ops.h"

namespace trireme::ops::reference {
namespace {

// One head of one segment.
struct HeadState {
  int64_t dim;
  std::vector<float> s;  // [key channel][value channel]

  void load(const float* states, int64_t head) {
    s.assign(static_cast<size_t>(dim * dim), 0.0F);
    if (states != nullptr) std::copy_n(states + head * dim * dim, dim * dim, s.data());
  }
  void store(float* states, int64_t head) const {
    if (states != nullptr) std::copy_n(s.data(), dim * dim, states + head * dim * dim);
  }

  float& at(int64_t key, int64_t value) { return s[static_cast<size_t>(key * dim + value)]; }

  // (S^T x) of one value channel.
  double read(const float* x, int64_t value) {
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) sum += static_cast<double>(at(i, value)) * x[i];
    return sum;
  }

  void update(const float* k, const float* v, const float* log_decay, double beta) {
    for (int64_t i = 0; i < dim; ++i) {
      const double decay = std::exp(static_cast<double>(log_decay[i]));
      for (int64_t j = 0; j < dim; ++j) at(i, j) = static_cast<float>(decay * at(i, j));
    }
    for (int64_t j = 0; j < dim; ++j) {
      const double write = beta * (v[j] - read(k, j));
      for (int64_t i = 0; i < dim; ++i) at(i, j) = static_cast<float>(at(i, j) + k[i] * write);
    }
  }
};

// x / sqrt(sum x^2 + 1e-6) * scale, in place.
void l2_normalize(float* x, int64_t dim, double scale) {
  const double factor = scale / std::sqrt(dot(x, x, dim) + 1e-6);
  for (int64_t d = 0; d < dim; ++d) x[d] = static_cast<float>(x[d] * factor);
}

double log_decay(const KdaGate& gate, int64_t head, int64_t channel, double z) {
  const double rate = std::exp(static_cast<double>(gate.a_log[head]));
  const double argument = z + gate.dt_bias[channel];
  return gate.bounded ? gate.lower_bound * sigmoid(rate * argument) : -rate * softplus(argument);
}

}  // namespace

void ReferenceOps::short_conv(const ShortConvArgs& args) const {
  const int64_t channels = args.x.cols;
  const int64_t past = args.taps - 1;
  each_row(channels, [&](int64_t c) {
    for (const ConvSegment& segment : args.segments) {
      // The channel's inputs in time order: the state, then the segment's rows.
      std::vector<float> inputs;
      for (int64_t j = 0; j < past; ++j) {
        inputs.push_back(segment.state_in == nullptr ? 0.0F : segment.state_in[j * channels + c]);
      }
      for (int64_t i = 0; i < segment.rows; ++i) inputs.push_back(args.x.row(segment.row_begin + i)[c]);

      for (int64_t i = 0; i < segment.rows; ++i) {
        args.y.row(segment.row_begin + i)[c] =
            rounded(silu(dot(args.weight + c * args.taps, inputs.data() + i, args.taps)));
      }
      for (int64_t j = 0; segment.state_out != nullptr && j < past; ++j) {
        segment.state_out[j * channels + c] = inputs[static_cast<size_t>(segment.rows + j)];
      }
    }
  });
}

void ReferenceOps::kda_prepare(const KdaPrepareArgs& args) const {
  const double q_scale = 1.0 / std::sqrt(static_cast<double>(args.dim));
  each_row(args.q.rows, [&](int64_t t) {
    for (int64_t h = 0; h < args.heads; ++h) {
      l2_normalize(args.q.row(t) + h * args.dim, args.dim, q_scale);
      l2_normalize(args.k.row(t) + h * args.dim, args.dim, 1.0);
      for (int64_t c = h * args.dim; c < (h + 1) * args.dim; ++c) {
        args.log_decay.row(t)[c] = static_cast<float>(log_decay(args.gate, h, c, args.z.row(t)[c]));
      }
      args.beta.row(t)[h] = static_cast<float>(sigmoid(args.b.row(t)[h]));
    }
  });
}

void ReferenceOps::kda(const KdaArgs& args) const {
  each_row(static_cast<int64_t>(args.segments.size()) * args.heads, [&](int64_t task) {
    const KdaSegment& segment = args.segments[static_cast<size_t>(task / args.heads)];
    const int64_t head = task % args.heads;
    const int64_t column = head * args.dim;
    HeadState state{args.dim, {}};
    state.load(segment.state_in, head);
    auto checkpoint = segment.checkpoints.begin();
    for (int64_t i = 0; i < segment.rows; ++i) {
      const int64_t t = segment.row_begin + i;
      state.update(args.k.row(t) + column, args.v.row(t) + column, args.log_decay.row(t) + column,
                   args.beta.row(t)[head]);
      if (args.out.data != nullptr) {
        for (int64_t j = 0; j < args.dim; ++j) {
          args.out.row(t)[column + j] = rounded(state.read(args.q.row(t) + column, j));
        }
      }
      for (; checkpoint != segment.checkpoints.end() && checkpoint->rows == i + 1; ++checkpoint) {
        state.store(checkpoint->state, head);
      }
    }
    state.store(segment.state_out, head);
  });
}

}  // namespace trireme::ops::reference
