// Experts that live on other ranks: rows go to the ranks of their experts, results come back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/stream.h"
#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

// One exchange of a layer. A row travels once to each rank that has one of its experts; every (row, choice) pair comes
// back as a row of its own, so that the sum runs in the order of the choices as on a single rank. Every rank of the
// group takes part, with no rows if it has none. A rank can receive at most size * block rows, and top_k times as many
// pairs.
class ExpertExchange {
 public:
  // z [own rows, width]; ids and weights [own rows, top_k].
  ExpertExchange(const Pass& pass, const MoeWeights& w, ConstRows z, const int32_t* ids, const float* weights);

  // Sends the rows, runs the experts of this rank, and begins to send the results back on `stream`. Throws Failure if
  // the other ranks send more than they may.
  void dispatch(comm::Stream& stream);
  // Waits for the results of the own rows and sums them into y [own rows, width], as Ops::experts does.
  void combine(Rows y);

 private:
  // What goes to one rank, or came from it.
  struct Message {
    struct Pair {
      int32_t row = 0;     // of the message
      int32_t expert = 0;  // global number
    };
    int64_t rows = 0;
    std::vector<Pair> pairs;
  };
  void plan();
  std::vector<std::byte> exchange_rows();
  Rows run_experts(const std::vector<std::byte>& rows) const;

  const Pass& pass_;
  const MoeWeights& w_;
  ConstRows z_;
  const int32_t* ids_;
  const float* weights_;
  int64_t ranks_;
  std::vector<Message> to_, from_;           // by rank
  std::vector<std::vector<int32_t>> rows_;   // by rank: own rows that go there
  std::vector<std::vector<int32_t>> slots_;  // by rank: row * top_k + choice of each pair that goes there
  // What the stream works on; its own, since an exception may leave before it is done.
  struct WayBack {
    std::vector<std::byte> results, returned;
    std::vector<int64_t> result_bytes, returned_bytes;  // by rank
  };
  std::shared_ptr<WayBack> back_ = std::make_shared<WayBack>();
  comm::Event done_;
};

}  // namespace trireme::model
