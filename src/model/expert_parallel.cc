#include "model/expert_parallel.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "comm/wire.h"
#include "model/mlp.h"
#include "model/row_exchange.h"

namespace trireme::model {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

ExpertExchange::ExpertExchange(const Pass& pass, const MoeWeights& w, ConstRows z, const int32_t* ids,
                               const float* weights)
    : pass_(pass),
      w_(w),
      z_(z),
      ids_(ids),
      weights_(weights),
      ranks_(pass.parallel.experts->size()),
      to_(static_cast<size_t>(ranks_)),
      from_(static_cast<size_t>(ranks_)),
      rows_(static_cast<size_t>(ranks_)),
      slots_(static_cast<size_t>(ranks_)) {
  back_->result_bytes.resize(static_cast<size_t>(ranks_));
  back_->returned_bytes.resize(static_cast<size_t>(ranks_));
  plan();
}

// Which rows and pairs go to which rank.
void ExpertExchange::plan() {
  const checkpoint::MoeConfig& c = pass_.config.moe;
  const int64_t each = layout::range_of(c.experts, {0, ranks_}).size();
  for (int64_t t = 0; t < z_.rows; ++t) {
    for (int64_t j = 0; j < c.top_k; ++j) {
      const int32_t expert = ids_[t * c.top_k + j];
      const auto rank = static_cast<size_t>(expert / each);
      if (rows_[rank].empty() || rows_[rank].back() != t) rows_[rank].push_back(static_cast<int32_t>(t));
      to_[rank].pairs.push_back({static_cast<int32_t>(rows_[rank].size()) - 1, expert});
      slots_[rank].push_back(static_cast<int32_t>(t * c.top_k + j));
    }
  }
  for (size_t r = 0; r < rows_.size(); ++r) to_[r].rows = static_cast<int64_t>(rows_[r].size());
}

// Counts, then pairs and rows; returns the received rows in their wire form, by rank.
std::vector<std::byte> ExpertExchange::exchange_rows() {
  comm::Communicator& group = *pass_.parallel.experts;
  const auto ranks = static_cast<size_t>(ranks_);
  const comm::Wire wire = wire_of(pass_.ops);
  const int64_t row_bytes = z_.cols * comm::element_bytes(wire);
  std::vector<int64_t> counts(2 * ranks);
  std::vector<int64_t> received(2 * ranks);
  for (size_t r = 0; r < ranks; ++r) {
    counts[2 * r] = to_[r].rows;
    counts[2 * r + 1] = static_cast<int64_t>(to_[r].pairs.size());
  }
  group.all_to_all(std::as_bytes(std::span(counts)), std::as_writable_bytes(std::span(received)));
  std::vector<Message::Pair> send_pairs;
  std::vector<Message::Pair> got_pairs;
  std::vector<int64_t> send_bytes, got_bytes, send_row_bytes, got_row_bytes;
  std::vector<std::byte> send_rows;
  for (size_t r = 0; r < ranks; ++r) {
    from_[r].rows = received[2 * r];
    const int64_t pairs = received[2 * r + 1];
    if (from_[r].rows > pass_.shape.block || pairs > from_[r].rows * pass_.config.moe.top_k) {
      throw Failure(
          fmt::format("expert dispatch: rank {} of the group sends {} rows and {} pairs, at most {} rows with {} "
                      "each were agreed",
                      r, from_[r].rows, pairs, pass_.shape.block, pass_.config.moe.top_k));
    }
    from_[r].pairs.resize(static_cast<size_t>(pairs));
    send_pairs.insert(send_pairs.end(), to_[r].pairs.begin(), to_[r].pairs.end());
    constexpr auto kPairBytes = static_cast<int64_t>(sizeof(Message::Pair));
    send_bytes.push_back(static_cast<int64_t>(to_[r].pairs.size()) * kPairBytes);
    got_bytes.push_back(pairs * kPairBytes);
    send_row_bytes.push_back(to_[r].rows * row_bytes);
    got_row_bytes.push_back(from_[r].rows * row_bytes);
    for (const int32_t t : rows_[r]) {
      send_rows.resize(send_rows.size() + static_cast<size_t>(row_bytes));
      comm::pack(z_.row_range(t, 1), wire, send_rows.data() + send_rows.size() - row_bytes);
    }
  }
  got_pairs.resize(static_cast<size_t>(sum(got_bytes)) / sizeof(Message::Pair));
  group.all_to_all(std::as_bytes(std::span(send_pairs)), send_bytes, std::as_writable_bytes(std::span(got_pairs)),
                   got_bytes);
  std::vector<std::byte> got_rows(static_cast<size_t>(sum(got_row_bytes)));
  group.all_to_all(send_rows, send_row_bytes, got_rows, got_row_bytes);
  auto next = got_pairs.begin();
  for (Message& m : from_) {
    std::copy_n(next, m.pairs.size(), m.pairs.begin());
    next += static_cast<int64_t>(m.pairs.size());
  }
  return got_rows;
}

// One result row for every received pair, by rank.
Rows ExpertExchange::run_experts(const std::vector<std::byte>& rows) const {
  int64_t row_count = 0;
  int64_t pair_count = 0;
  for (const Message& m : from_) {
    row_count += m.rows;
    pair_count += static_cast<int64_t>(m.pairs.size());
  }
  const Rows received = pass_.workspace.rows(row_count, z_.cols);
  const Rows inputs = pass_.workspace.rows(pair_count, z_.cols);
  const Rows outputs = pass_.workspace.rows(pair_count, z_.cols);
  comm::unpack(rows.data(), received, wire_of(pass_.ops));
  std::vector<int32_t> experts;
  int64_t base = 0;
  for (size_t r = 0; r < from_.size(); ++r) {
    for (const Message::Pair& p : from_[r].pairs) {
      const int64_t local = p.expert - w_.first_expert;
      if (p.row < 0 || p.row >= from_[r].rows || local < 0 || local >= static_cast<int64_t>(w_.experts.size())) {
        throw Failure(fmt::format(
            "expert dispatch: rank {} of the group asks for expert {} on row {} of {}; this rank has experts "
            "{} to {}",
            r, p.expert, p.row, from_[r].rows, w_.first_expert,
            w_.first_expert + static_cast<int64_t>(w_.experts.size()) - 1));
      }
      copy(received.row_range(base + p.row, 1), inputs.row_range(static_cast<int64_t>(experts.size()), 1));
      experts.push_back(static_cast<int32_t>(local));
    }
    base += from_[r].rows;
  }
  const std::vector<float> ones(experts.size(), 1.0F);
  pass_.ops.experts({inputs, experts.data(), ones.data(), 1, w_.experts, glu_of(pass_.config), outputs});
  return outputs;
}

void ExpertExchange::dispatch(comm::Stream& stream) {
  const comm::Wire wire = wire_of(pass_.ops);
  const int64_t row_bytes = z_.cols * comm::element_bytes(wire);
  const std::vector<std::byte> rows = exchange_rows();
  {
    const Workspace::Scope scope(pass_.workspace);
    const Rows outputs = run_experts(rows);
    back_->results.resize(static_cast<size_t>(outputs.rows * row_bytes));
    comm::pack(outputs, wire, back_->results.data());
  }
  for (size_t r = 0; r < from_.size(); ++r) {
    back_->result_bytes[r] = static_cast<int64_t>(from_[r].pairs.size()) * row_bytes;
    back_->returned_bytes[r] = static_cast<int64_t>(to_[r].pairs.size()) * row_bytes;
  }
  back_->returned.resize(static_cast<size_t>(sum(back_->returned_bytes)));
  done_ = stream.run([back = back_, group = pass_.parallel.combine] {
    group->all_to_all(back->results, back->result_bytes, back->returned, back->returned_bytes);
  });
}

void ExpertExchange::combine(Rows y) {
  done_.wait();
  const comm::Wire wire = wire_of(pass_.ops);
  const int64_t top_k = pass_.config.moe.top_k;
  const int64_t row_bytes = z_.cols * comm::element_bytes(wire);
  const Workspace::Scope scope(pass_.workspace);
  const Rows pairs = pass_.workspace.rows(z_.rows * top_k, z_.cols);
  const std::byte* from = back_->returned.data();
  for (const std::vector<int32_t>& slots : slots_) {
    for (const int32_t slot : slots) {
      comm::unpack(from, pairs.row_range(slot, 1), wire);
      from += row_bytes;
    }
  }
  ops::CombineArgs args;
  args.y = pairs;
  args.weights = weights_;
  args.top_k = top_k;
  args.out = y;
  pass_.ops.combine_experts(args);
}

}  // namespace trireme::model
