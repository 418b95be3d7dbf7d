// What every backend must do, checked against plain computations. Each function is called by all ranks of a world; it
// throws a Failure where a result differs. Without GoogleTest, so that ranks under mpirun run the same checks.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "comm/world.h"

namespace trireme::comm::checks {

template <class... Args>
void require(bool right, fmt::format_string<Args...> what, Args&&... args) {
  if (!right) throw Failure("wrong: " + fmt::format(what, std::forward<Args>(args)...));
}

// Element i of what `rank` contributes to round `round`: full float32 mantissas of both signs.
inline float value(uint64_t round, int rank, int64_t i) {
  return static_cast<float>(uniform_at(round, static_cast<uint64_t>(i), static_cast<uint64_t>(rank)) * 8.0 - 4.0);
}

inline std::byte byte(uint64_t round, int from, int to, int64_t i) {
  return static_cast<std::byte>(
      mix64(mix64(round * 1000003 + static_cast<uint64_t>(from) * 131 + static_cast<uint64_t>(to)) ^
            static_cast<uint64_t>(i)));
}

inline float on_wire(float x, Wire wire) { return wire == Wire::bf16 ? round_to_bf16(x) : x; }

inline std::vector<int> range(int begin, int end, int step = 1) {
  std::vector<int> ranks;
  for (int r = begin; r < end; r += step) ranks.push_back(r);
  return ranks;
}

// Rows with a gap behind each, which nobody may write.
class Field {
 public:
  static constexpr float kGap = -12345.0F;
  Field(int64_t rows, int64_t cols, int64_t gap) : rows_(rows), cols_(cols), stride_(cols + gap) {
    values_.assign(static_cast<size_t>(rows * stride_), kGap);
  }
  Rows view() { return {values_.data(), rows_, cols_, stride_}; }
  float& at(int64_t r, int64_t c) { return values_[static_cast<size_t>(r * stride_ + c)]; }
  void fill(uint64_t round, int rank) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) at(r, c) = value(round, rank, r * cols_ + c);
    }
  }
  void require_gaps(const std::string& what) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = cols_; c < stride_; ++c) require(at(r, c) == kGap, "{} wrote between the rows", what);
    }
  }

 private:
  int64_t rows_;
  int64_t cols_;
  int64_t stride_;
  std::vector<float> values_;
};

// `members` are what the payloads are made of: rank r of the group contributes value(round, members[r], .).
inline void all_gather_rows(Communicator& group, std::span<const int> members, uint64_t round, int64_t rows,
                            int64_t cols, int64_t gap, Wire wire) {
  Field mine(rows, cols, gap);
  Field all(group.size() * rows, cols, gap / 2);
  mine.fill(round, members[static_cast<size_t>(group.rank())]);
  group.all_gather(mine.view(), all.view(), wire);
  for (int64_t r = 0; r < group.size() * rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float right = on_wire(value(round, members[static_cast<size_t>(r / rows)], r % rows * cols + c), wire);
      require(all.at(r, c) == right, "all_gather of {} x {}, round {}, row {}", rows, cols, round, r);
    }
  }
  all.require_gaps("all_gather");
}

inline void all_to_all_rows(Communicator& group, std::span<const int> members, uint64_t round, int64_t rows,
                            int64_t cols, int64_t gap, Wire wire) {
  Field send(group.size() * rows, cols, gap / 2);
  Field receive(group.size() * rows, cols, gap);
  send.fill(round, members[static_cast<size_t>(group.rank())]);
  group.all_to_all(send.view(), receive.view(), wire);
  for (int64_t r = 0; r < group.size() * rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t there = group.rank() * rows + r % rows;
      const float right = on_wire(value(round, members[static_cast<size_t>(r / rows)], there * cols + c), wire);
      require(receive.at(r, c) == right, "all_to_all of {} x {}, round {}, row {}", rows, cols, round, r);
    }
  }
  receive.require_gaps("all_to_all");
}

inline void reduce_scatter_rows(Communicator& group, std::span<const int> members, uint64_t round, int64_t rows,
                                int64_t cols, int64_t gap, Wire wire) {
  Field parts(group.size() * rows, cols, gap);
  Field mine(rows, cols, gap);
  parts.fill(round, members[static_cast<size_t>(group.rank())]);
  group.reduce_scatter(parts.view(), mine.view(), wire);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = (group.rank() * rows + r) * cols + c;
      float right = on_wire(value(round, members[0], i), wire);
      for (size_t m = 1; m < members.size(); ++m) right += on_wire(value(round, members[m], i), wire);
      require(mine.at(r, c) == right, "reduce_scatter of {} x {}, round {}, row {}", rows, cols, round, r);
    }
  }
  mine.require_gaps("reduce_scatter");
}

inline void broadcast_bytes(Communicator& group, std::span<const int> members, uint64_t round, int64_t bytes,
                            int root) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  const int source = members[static_cast<size_t>(root)];
  if (group.rank() == root) {
    for (int64_t i = 0; i < bytes; ++i) data[static_cast<size_t>(i)] = byte(round, source, 0, i);
  }
  group.broadcast(data, root);
  for (int64_t i = 0; i < bytes; ++i) {
    require(data[static_cast<size_t>(i)] == byte(round, source, 0, i), "broadcast of {}, byte {}", bytes, i);
  }
  std::fill(data.begin(), data.end(), std::byte{0xee});  // the root's memory is its own again
}

inline void all_gather_bytes(Communicator& group, std::span<const int> members, uint64_t round, int64_t bytes) {
  std::vector<std::byte> mine(static_cast<size_t>(bytes));
  std::vector<std::byte> all(static_cast<size_t>(bytes * group.size()));
  const int me = members[static_cast<size_t>(group.rank())];
  for (int64_t i = 0; i < bytes; ++i) mine[static_cast<size_t>(i)] = byte(round, me, 1, i);
  group.all_gather(mine, all);
  std::fill(mine.begin(), mine.end(), std::byte{0xee});
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    const int source = members[static_cast<size_t>(i / bytes)];
    require(all[static_cast<size_t>(i)] == byte(round, source, 1, i % bytes), "all_gather of {} bytes", bytes);
  }
}

// Bytes from world rank a to world rank b in an uneven all_to_all: many differ, some are 0.
inline int64_t block(uint64_t round, int a, int b, int64_t most) {
  const uint64_t bits = mix64(round * 7919 + static_cast<uint64_t>(a * 64 + b));
  return bits % 5 == 0 ? 0 : static_cast<int64_t>(bits % static_cast<uint64_t>(most + 1));
}

inline void all_to_all_uneven(Communicator& group, std::span<const int> members, uint64_t round, int64_t most) {
  const int me = members[static_cast<size_t>(group.rank())];
  std::vector<int64_t> out;
  std::vector<int64_t> in;
  std::vector<std::byte> send;
  for (const int other : members) {
    out.push_back(block(round, me, other, most));
    in.push_back(block(round, other, me, most));
    for (int64_t i = 0; i < out.back(); ++i) send.push_back(byte(round, me, other, i));
  }
  std::vector<std::byte> receive(static_cast<size_t>(std::accumulate(in.begin(), in.end(), int64_t{0})));
  group.all_to_all(send, out, receive, in);
  std::fill(send.begin(), send.end(), std::byte{0xee});
  size_t at = 0;
  for (size_t r = 0; r < members.size(); ++r) {
    for (int64_t i = 0; i < in[r]; ++i, ++at) {
      require(receive[at] == byte(round, members[r], me, i), "all_to_all of uneven blocks, from rank {}", r);
    }
  }
}

// Every rank sends every other rank two messages by each of two tags, which are received in another order of tags.
inline void mail(Communicator& group, std::span<const int> members, uint64_t round, int64_t bytes) {
  const int me = members[static_cast<size_t>(group.rank())];
  const auto content = [&](int from, int to, int tag, int number) {
    std::vector<std::byte> data(static_cast<size_t>(bytes + tag));
    for (int64_t i = 0; i < std::ssize(data); ++i) {
      data[static_cast<size_t>(i)] = byte(round + static_cast<uint64_t>(10 * tag + number), from, to, i);
    }
    return data;
  };
  for (int to = 0; to < group.size(); ++to) {
    if (to == group.rank()) continue;
    for (const int number : {0, 1}) {
      for (const int tag : {3, 4}) group.send(to, tag, content(me, members[static_cast<size_t>(to)], tag, number));
    }
  }
  for (int from = 0; from < group.size(); ++from) {
    if (from == group.rank()) continue;
    for (const int tag : {4, 3}) {
      for (const int number : {0, 1}) {
        std::vector<std::byte> data(static_cast<size_t>(bytes + tag));
        group.receive(from, tag, data);
        require(data == content(members[static_cast<size_t>(from)], me, tag, number),
                "message {} with tag {} from rank {}", number, tag, from);
      }
    }
  }
}

inline void every_operation(Communicator& group, std::span<const int> members) {
  group.barrier();
  uint64_t round = 1;
  for (const int64_t bytes : {0, 1, 7, 4096, 4097, 70001}) {
    for (int root = 0; root < group.size(); ++root) broadcast_bytes(group, members, ++round, bytes, root);
    all_gather_bytes(group, members, ++round, bytes);
    all_to_all_uneven(group, members, ++round, bytes);
    mail(group, members, round += 100, std::min<int64_t>(bytes, 1000));
  }
  struct Shape {
    int64_t rows, cols, gap;
  };
  for (const Shape& s :
       {Shape{1, 1, 0}, Shape{3, 5, 0}, Shape{5, 33, 6}, Shape{0, 8, 0}, Shape{2, 0, 4}, Shape{17, 257, 2}}) {
    for (const Wire wire : {Wire::f32, Wire::bf16}) {
      all_gather_rows(group, members, ++round, s.rows, s.cols, s.gap, wire);
      all_to_all_rows(group, members, ++round, s.rows, s.cols, s.gap, wire);
      reduce_scatter_rows(group, members, ++round, s.rows, s.cols, s.gap, wire);
    }
  }
}

// `count` operations back to back, drawn from `seed` alike in all ranks, on the whole world, its halves and its
// parities.
inline void random_operations(World& world, uint64_t seed, int count) {
  const int half = std::max(world.size() / 2, 1);
  const std::array<std::vector<int>, 3> members = {range(0, world.size()),
                                                   world.rank() < half ? range(0, half) : range(half, world.size()),
                                                   range(world.rank() % 2, world.size(), 2)};
  std::array<std::unique_ptr<Communicator>, 3> groups;
  for (size_t g = 0; g < groups.size(); ++g) groups[g] = world.group(fmt::format("random {}", g), members[g]);
  for (int n = 0; n < count; ++n) {
    const uint64_t round = seed * 1000000 + static_cast<uint64_t>(n);
    const auto draw = [&](uint64_t which, uint64_t choices) { return mix64(round * 16 + which) % choices; };
    const size_t g = draw(0, 3);
    Communicator& group = *groups[g];
    const std::span<const int> ranks = members[g];
    // Most are small; one in sixteen is beyond what a backend may treat as small.
    const auto cols = static_cast<int64_t>(draw(1, 16) == 0 ? 600 : draw(2, 40));
    const auto rows = static_cast<int64_t>(1 + draw(3, 3));
    const auto gap = static_cast<int64_t>(draw(4, 3));
    const Wire wire = draw(5, 2) == 0 ? Wire::f32 : Wire::bf16;
    // Ranks arrive in changing order.
    if (mix64(round + static_cast<uint64_t>(world.rank()) * 31) % 4 == 0) std::this_thread::yield();
    switch (draw(6, 8)) {
      case 0:
        group.barrier();
        break;
      case 1:
        broadcast_bytes(group, ranks, round, rows * cols * 4, static_cast<int>(round % ranks.size()));
        break;
      case 2:
        all_gather_bytes(group, ranks, round, rows * cols + 1);
        break;
      case 3:
        all_to_all_uneven(group, ranks, round, rows * cols);
        break;
      case 4:
        all_gather_rows(group, ranks, round, rows, cols, gap, wire);
        break;
      case 5:
        all_to_all_rows(group, ranks, round, rows, cols, gap, wire);
        break;
      case 6:
        reduce_scatter_rows(group, ranks, round, rows, cols, gap, wire);
        break;
      default: {
        const int to = (group.rank() + 1) % group.size();
        const int from = (group.rank() + group.size() - 1) % group.size();
        if (group.size() == 1) break;
        std::vector<std::byte> out(static_cast<size_t>(cols),
                                   byte(round, ranks[static_cast<size_t>(group.rank())], 9, 0));
        std::vector<std::byte> in(out.size());
        group.send(to, static_cast<int>(round % 3), out);
        group.receive(from, static_cast<int>(round % 3), in);
        for (const std::byte b : in) require(b == byte(round, ranks[static_cast<size_t>(from)], 9, 0), "a message");
      }
    }
  }
}

// What every_operation cannot see: what is counted as sent. A group of the whole world.
inline void traffic_counts(World& world) {
  const std::vector<int> members = range(0, world.size());
  const auto group = world.group("traffic", members);
  const int64_t others = world.size() - 1;
  const auto expect = [&](Operation operation, int64_t calls, int64_t bytes) {
    const Traffic::Count& count = group->traffic()[operation];
    require(count.calls == calls && count.bytes == bytes, "traffic of {}: {} calls, {} bytes, expected {} and {}",
            operation_name(operation), count.calls, count.bytes, calls, bytes);
  };
  for (int o = 0; o < kOperations; ++o) expect(static_cast<Operation>(o), 0, 0);  // warming up is not counted
  all_gather_bytes(*group, members, 1, 10);
  all_gather_rows(*group, members, 2, 3, 5, 1, Wire::bf16);
  expect(Operation::all_gather, 2, others * (10 + 3 * 5 * 2));
  all_to_all_rows(*group, members, 3, 3, 5, 1, Wire::f32);
  int64_t bytes = others * 3 * 5 * 4;
  expect(Operation::all_to_all, 1, bytes);
  all_to_all_uneven(*group, members, 4, 100);
  for (const int other : members) bytes += other == world.rank() ? 0 : block(4, world.rank(), other, 100);
  expect(Operation::all_to_all, 2, bytes);
  reduce_scatter_rows(*group, members, 5, 2, 7, 0, Wire::bf16);
  expect(Operation::reduce_scatter, 1, others * 2 * 7 * 2);
  broadcast_bytes(*group, members, 6, 12, 0);
  expect(Operation::broadcast, 1, world.rank() == 0 ? others * 12 : 0);
  if (others > 0) {
    mail(*group, members, 7, 20);
    expect(Operation::send, 4 * others, others * 2 * (23 + 24));
    expect(Operation::receive, 4 * others, 0);
  }
  group->barrier();
  expect(Operation::barrier, 1, 0);
}

}  // namespace trireme::comm::checks
