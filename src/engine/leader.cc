#include "engine/leader.h"

#include <fmt/format.h>

#include <exception>

#include "base/error.h"

namespace trireme::engine {
namespace {

constexpr int kLogitsTag = 1;

// Reads numbers back in order; never past the end.
class Reader {
 public:
  explicit Reader(std::span<const int64_t> numbers) : numbers_(numbers) {}
  int64_t next() {
    if (at_ == numbers_.size()) throw Failure("a step's batches end too early");
    return numbers_[at_++];
  }
  // A count of items that each take at least one more number.
  size_t count() {
    const int64_t n = next();
    if (n < 0 || static_cast<uint64_t>(n) > numbers_.size() - at_) {
      throw Failure(fmt::format("a step's batches name {} items where {} numbers are left", n, numbers_.size() - at_));
    }
    return static_cast<size_t>(n);
  }
  template <class T>
  void list(std::vector<T>& out) {
    out.resize(count());
    for (T& value : out) value = static_cast<T>(next());
  }
  bool ended() const { return at_ == numbers_.size(); }

 private:
  std::span<const int64_t> numbers_;
  size_t at_ = 0;
};

template <class T>
void put(std::vector<int64_t>& numbers, const std::vector<T>& values) {
  numbers.push_back(static_cast<int64_t>(values.size()));
  numbers.insert(numbers.end(), values.begin(), values.end());
}

void tell(comm::Communicator& everyone, std::vector<int64_t>& numbers) {
  auto size = static_cast<int64_t>(numbers.size());
  everyone.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  numbers.resize(static_cast<size_t>(size));
  if (size > 0) everyone.broadcast(std::as_writable_bytes(std::span(numbers)), 0);
}

// This rank's part of a step; the logits of group d end up in `logits[d]` on rank 0.
void run_part(Rank& rank, std::span<const model::Batch> batches, std::vector<Matrix>* logits) {
  const auto own = static_cast<size_t>(rank.place().dp);
  Matrix mine;
  rank.run(batches.subspan(own, 1), [&](size_t, model::ForwardOutput& output) { mine = std::move(output.logits); });
  const layout::Instance& instance = rank.instance();
  for (size_t d = 0; d < batches.size(); ++d) {
    const auto rows = static_cast<int64_t>(batches[d].logit_rows.size());
    if (rows == 0) continue;
    const auto owner =
        static_cast<int>((instance.stages() - 1) * instance.ranks_per_stage() + static_cast<int64_t>(d) * instance.tp);
    if (owner == 0) {
      if (logits != nullptr) (*logits)[d] = std::move(mine);
      continue;
    }
    const size_t bytes = static_cast<size_t>(rows * rank.config().vocab) * sizeof(float);
    if (rank.place().rank == owner) {
      rank.everyone().send(0, kLogitsTag, {reinterpret_cast<const std::byte*>(mine.data()), bytes});
    }
    if (logits == nullptr) continue;
    (*logits)[d] = Matrix(rows, rank.config().vocab);
    rank.everyone().receive(owner, kLogitsTag, {reinterpret_cast<std::byte*>((*logits)[d].data()), bytes});
  }
}

}  // namespace

std::vector<int64_t> encode_batches(std::span<const model::Batch> batches) {
  std::vector<int64_t> numbers{static_cast<int64_t>(batches.size())};
  for (const model::Batch& batch : batches) {
    put(numbers, batch.tokens);
    numbers.push_back(static_cast<int64_t>(batch.segments.size()));
    for (const model::Segment& s : batch.segments) {
      numbers.insert(numbers.end(), {s.rows, s.position, s.slot});
      put(numbers, s.pages);
    }
    put(numbers, batch.logit_rows);
  }
  return numbers;
}

std::vector<model::Batch> decode_batches(std::span<const int64_t> numbers) {
  Reader reader(numbers);
  std::vector<model::Batch> batches(reader.count());
  for (model::Batch& batch : batches) {
    reader.list(batch.tokens);
    batch.segments.resize(reader.count());
    for (model::Segment& s : batch.segments) {
      s.rows = reader.next();
      s.position = reader.next();
      s.slot = static_cast<int32_t>(reader.next());
      reader.list(s.pages);
    }
    reader.list(batch.logit_rows);
  }
  if (!reader.ended()) throw Failure("a step's batches have numbers left over");
  return batches;
}

Leader::~Leader() {
  if (failed_) return;
  try {
    std::vector<int64_t> nothing;
    tell(rank_.everyone(), nothing);
  } catch (const std::exception&) {
    // Whoever is left was told by the failure itself.
  }
}

std::vector<Matrix> Leader::step(std::span<const model::Batch> batches) {
  if (static_cast<int64_t>(batches.size()) != groups()) {
    throw Failure(fmt::format("a step has {} batches, the instance has {} attention groups", batches.size(), groups()));
  }
  std::vector<int64_t> numbers = encode_batches(batches);
  failed_ = true;  // unless all of it comes back
  tell(rank_.everyone(), numbers);
  std::vector<Matrix> logits(batches.size());
  run_part(rank_, batches, &logits);
  failed_ = false;
  return logits;
}

void follow(Rank& rank) {
  for (;;) {
    std::vector<int64_t> numbers;
    tell(rank.everyone(), numbers);
    if (numbers.empty()) return;
    run_part(rank, decode_batches(numbers), nullptr);
  }
}

}  // namespace trireme::engine
