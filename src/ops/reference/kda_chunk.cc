#include "ops/reference/kda_chunk.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace trireme::ops::reference {
namespace {

using Grid = std::vector<std::vector<double>>;

Grid grid(int64_t rows, int64_t cols) {
  return Grid(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(cols)));
}

Grid part(ConstRows x, int64_t row, int64_t rows, int64_t column, int64_t dim) {
  Grid g = grid(rows, dim);
  for (int64_t t = 0; t < rows; ++t) std::copy_n(x.row(row + t) + column, dim, g[static_cast<size_t>(t)].begin());
  return g;
}

// One head of one chunk.
struct Chunk {
  Grid q, k, v;
  Grid total;  // G
  std::vector<double> beta;
  Grid written;  // V'

  size_t rows() const { return q.size(); }
  size_t dim() const { return q[0].size(); }

  // sum_d x[d] k_s[d] exp(G_t[d] - G_s[d])
  double decayed_dot(const std::vector<double>& x, size_t t, size_t s) const {
    double sum = 0;
    for (size_t d = 0; d < dim(); ++d) sum += x[d] * k[s][d] * std::exp(total[t][d] - total[s][d]);
    return sum;
  }

  // row t of (X exp(G)) S0
  std::vector<double> through_state(const std::vector<double>& x, size_t t, const Grid& s0) const {
    std::vector<double> y(dim());
    for (size_t d = 0; d < dim(); ++d) {
      const double factor = x[d] * std::exp(total[t][d]);
      for (size_t j = 0; j < dim(); ++j) y[j] += factor * s0[d][j];
    }
    return y;
  }

  void solve(const Grid& s0) {
    written = v;
    for (size_t t = 0; t < rows(); ++t) {
      const std::vector<double> read = through_state(k[t], t, s0);
      for (size_t j = 0; j < dim(); ++j) written[t][j] = beta[t] * (v[t][j] - read[j]);
      for (size_t s = 0; s < t; ++s) {
        const double a = beta[t] * decayed_dot(k[t], t, s);
        for (size_t j = 0; j < dim(); ++j) written[t][j] -= a * written[s][j];
      }
    }
  }

  std::vector<double> output(size_t t, const Grid& s0) const {
    std::vector<double> o = through_state(q[t], t, s0);
    for (size_t s = 0; s <= t; ++s) {
      const double p = decayed_dot(q[t], t, s);
      for (size_t j = 0; j < dim(); ++j) o[j] += p * written[s][j];
    }
    return o;
  }

  // The state after row t of the chunk.
  Grid state(size_t t, const Grid& s0) const {
    Grid out = s0;
    for (size_t d = 0; d < dim(); ++d) {
      for (size_t j = 0; j < dim(); ++j) out[d][j] *= std::exp(total[t][d]);
      for (size_t s = 0; s <= t; ++s) {
        const double factor = k[s][d] * std::exp(total[t][d] - total[s][d]);
        for (size_t j = 0; j < dim(); ++j) out[d][j] += factor * written[s][j];
      }
    }
    return out;
  }
};

Chunk read_chunk(const KdaArgs& args, int64_t head, int64_t row, int64_t rows) {
  const int64_t column = head * args.dim;
  Chunk c{part(args.q, row, rows, column, args.dim),
          part(args.k, row, rows, column, args.dim),
          part(args.v, row, rows, column, args.dim),
          part(args.log_decay, row, rows, column, args.dim),
          {},
          {}};
  for (size_t t = 1; t < c.rows(); ++t) {
    for (size_t d = 0; d < c.dim(); ++d) c.total[t][d] += c.total[t - 1][d];
  }
  for (int64_t t = 0; t < rows; ++t) c.beta.push_back(args.beta.row(row + t)[head]);
  return c;
}

void store(const Grid& s, float* states, int64_t head, int64_t dim) {
  if (states == nullptr) return;
  float* to = states + head * dim * dim;
  for (const std::vector<double>& row : s) {
    for (const double value : row) *to++ = static_cast<float>(value);
  }
}

void run_head(const KdaArgs& args, const KdaSegment& segment, int64_t head, int64_t chunk) {
  const int64_t dim = args.dim;
  Grid s0 = grid(dim, dim);
  if (segment.state_in != nullptr) {
    const float* from = segment.state_in + head * dim * dim;
    for (std::vector<double>& row : s0) {
      for (double& value : row) value = *from++;
    }
  }
  auto checkpoint = segment.checkpoints.begin();
  for (int64_t begin = 0; begin < segment.rows; begin += chunk) {
    const int64_t rows = std::min(chunk, segment.rows - begin);
    Chunk c = read_chunk(args, head, segment.row_begin + begin, rows);
    c.solve(s0);
    for (int64_t t = 0; t < rows; ++t) {
      const auto at = static_cast<size_t>(t);
      if (args.out.data != nullptr) {
        const std::vector<double> o = c.output(at, s0);
        float* to = args.out.row(segment.row_begin + begin + t) + head * dim;
        for (const double value : o) *to++ = static_cast<float>(value);
      }
      for (; checkpoint != segment.checkpoints.end() && checkpoint->rows == begin + t + 1; ++checkpoint) {
        store(c.state(at, s0), checkpoint->state, head, dim);
      }
    }
    s0 = c.state(c.rows() - 1, s0);
  }
  store(s0, segment.state_out, head, dim);
}

}  // namespace

void kda_chunked(const KdaArgs& args, int64_t chunk) {
  for (const KdaSegment& segment : args.segments) {
    for (int64_t head = 0; head < args.heads; ++head) run_head(args, segment, head, chunk);
  }
}

}  // namespace trireme::ops::reference
