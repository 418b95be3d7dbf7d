// MLA: cuts segments into blocks of rows and heads, and keys (a shard's local rows) into partitions of kPartitionPages
// pages counted from the first. Every partition is attended from nothing and merged in order, whether one thread does
// all of a block or several share it: the arithmetic of a row is fixed by its own position alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/thread_scratch.h"

namespace trireme::ops::cpu {
namespace {

constexpr int64_t kPartitionPages = 8;
constexpr int64_t kBlockLanes =
    112;  // (row, head) pairs of a block: enough to make widening a page cheap, few enough for the cache
constexpr int64_t kSplitLanes = 16;  // heads of a block where blocks are too few for the threads

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Item {
  MlaBlock block;
  float* out = nullptr;
  int64_t out_stride = 0;
  float* lse = nullptr;  // of the first row and head; null: not wanted
  int64_t lse_stride = 0;

  int64_t pages() const { return ceil_div(block.visible(block.rows - 1), kPageTokens); }
  int64_t partitions() const { return ceil_div(pages(), kPartitionPages); }
};

// Blocks of at most `most_heads` heads, longest first, so that the last ones handed out are short.
std::vector<Item> cut(const MlaArgs& args, bool round, int64_t most_heads) {
  const int64_t heads = std::min(args.heads, most_heads);
  std::vector<Item> items;
  for (const MlaSegment& s : args.segments) {
    const int64_t most_rows = std::max<int64_t>(1, kBlockLanes / heads);
    for (int64_t row = (ceil_div(s.rows, most_rows) - 1) * most_rows; row >= 0; row -= most_rows) {
      for (int64_t head = 0; head < args.heads; head += heads) {
        Item item;
        item.block = {.rows = std::min(most_rows, s.rows - row),
                      .heads = std::min(heads, args.heads - head),
                      .position = s.position + row,
                      .q = args.q.row(s.row_begin + row) + head * args.pages.width,
                      .q_stride = args.q.stride,
                      .width = args.pages.width,
                      .latent = args.latent,
                      .scale = args.scale,
                      .round = round,
                      .pages = args.pages.base,
                      .page_table = s.pages.data(),
                      .page_bytes = args.pages.page_bytes(),
                      .bf16_pages = args.pages.dtype == DType::bf16,
                      .shard = args.shard};
        item.out = args.ctx.row(s.row_begin + row) + head * args.latent;
        item.out_stride = args.ctx.stride;
        if (args.lse.data != nullptr) item.lse = args.lse.row(s.row_begin + row) + head;
        item.lse_stride = args.lse.stride;
        items.push_back(item);
      }
    }
  }
  return items;
}

// Working memory of one block, cut from one piece of scratch. All parts are multiples of 64 bytes.
class Workspace {
 public:
  Workspace(const RowKernels& kernels, const MlaBlock& block)
      : lanes_(whole_lines(kernels.mla_lanes(block.rows * block.heads))),
        partial_(2 * lanes_ + lanes_ * kernels.mla_columns(block.latent)),
        packed_(whole_lines(kernels.mla_packed_floats(block))),
        scratch_(whole_lines(kernels.mla_scratch_floats(block))) {}

  int64_t partial_floats() const { return partial_; }
  int64_t kernel_floats() const { return packed_ + scratch_; }
  MlaPartial partial(float* memory) const { return {memory, memory + lanes_, memory + 2 * lanes_}; }
  float* packed(float* memory) const { return memory; }
  float* scratch(float* memory) const { return memory + packed_; }

 private:
  static int64_t whole_lines(int64_t floats) { return ceil_div(floats, 16) * 16; }

  int64_t lanes_;
  int64_t partial_;
  int64_t packed_;
  int64_t scratch_;
};

// The first row of the block that sees any key of a partition.
int64_t first_row(const MlaBlock& block, int64_t partition) {
  int64_t row = 0;
  while (block.visible(row) <= partition * kPartitionPages * kPageTokens) ++row;
  return row;
}

void attend_partition(const RowKernels& kernels, const Item& item, const float* packed, int64_t partition,
                      float* scratch, const MlaPartial& into) {
  const int64_t begin = partition * kPartitionPages;
  kernels.mla_pages(item.block, packed, begin, std::min(begin + kPartitionPages, item.pages()), scratch, into);
}

// Writes a block's results.
void finish(const RowKernels& kernels, const Item& item, const MlaPartial& sum) {
  const MlaBlock& block = item.block;
  kernels.mla_finish(block, sum, item.out, item.out_stride);
  for (int64_t row = 0; item.lse != nullptr && row < block.rows; ++row) {
    const bool blind = block.visible(row) == 0;
    for (int64_t head = 0; head < block.heads; ++head) {
      const int64_t lane = row * block.heads + head;
      const double lse = blind ? -std::numeric_limits<double>::infinity()
                               : sum.max[lane] + std::log(static_cast<double>(sum.sum[lane]));
      item.lse[row * item.lse_stride + head] = static_cast<float>(lse);
    }
  }
}

// All partitions of a block on this thread.
void attend_whole(const RowKernels& kernels, const Item& item) {
  const Workspace space(kernels, item.block);
  float* memory = thread_scratch<ScratchUse::body>(2 * space.partial_floats() + space.kernel_floats());
  const MlaPartial sum = space.partial(memory);
  const MlaPartial part = space.partial(memory + space.partial_floats());
  float* kernel = memory + 2 * space.partial_floats();
  kernels.mla_pack_queries(item.block, space.packed(kernel));
  for (int64_t p = 0; p < item.partitions(); ++p) {
    attend_partition(kernels, item, space.packed(kernel), p, space.scratch(kernel), p == 0 ? sum : part);
    if (p > 0) kernels.mla_merge(item.block, first_row(item.block, p), sum, part);
  }
  finish(kernels, item, sum);
}

struct Task {
  const Item* item = nullptr;
  int64_t partition = 0;
};

// Few blocks over long contexts: threads share a block's partitions. A wave of tasks runs at once, then its results are
// merged in order, so that memory stays small however long the context is.
void attend_shared(const RowKernels& kernels, ThreadPool& pool, const std::vector<Item>& items) {
  std::vector<Task> tasks;
  int64_t partial_floats = 0;
  for (const Item& item : items) {
    for (int64_t p = 0; p < item.partitions(); ++p) tasks.push_back({&item, p});
    partial_floats = std::max(partial_floats, Workspace(kernels, item.block).partial_floats());
  }
  const int64_t wave = 4 * pool.threads();
  float* memory = thread_scratch<ScratchUse::caller>((wave + 1) * partial_floats);
  float* const sum_memory = memory + wave * partial_floats;
  const auto count = static_cast<int64_t>(tasks.size());
  for (int64_t first = 0; first < count; first += wave) {
    const int64_t size = std::min(wave, count - first);
    pool.parallel_for(size, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Task& task = tasks[static_cast<size_t>(first + i)];
        const Workspace space(kernels, task.item->block);
        float* kernel = thread_scratch<ScratchUse::body>(space.kernel_floats());
        kernels.mla_pack_queries(task.item->block, space.packed(kernel));
        attend_partition(kernels, *task.item, space.packed(kernel), task.partition, space.scratch(kernel),
                         space.partial(memory + i * partial_floats));
      }
    });
    for (int64_t i = 0; i < size; ++i) {
      const Task& task = tasks[static_cast<size_t>(first + i)];
      const Workspace space(kernels, task.item->block);
      const MlaPartial sum = space.partial(sum_memory);
      if (task.partition == 0) {
        std::memcpy(sum_memory, memory + i * partial_floats,
                    static_cast<size_t>(space.partial_floats()) * sizeof(float));
      } else {
        kernels.mla_merge(task.item->block, first_row(task.item->block, task.partition), sum,
                          space.partial(memory + i * partial_floats));
      }
      if (task.partition + 1 == task.item->partitions()) {
        finish(kernels, *task.item, sum);
      }
    }
  }
}

}  // namespace

void CpuOps::store_latent(const StoreLatentArgs& args) const {
  const int64_t width = args.pages.width;
  const int64_t row_bytes = width * dtype_bytes(args.pages.dtype);
  for (const MlaSegment& s : args.segments) {
    pool().parallel_for(s.rows, 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = s.position + i;
        if (!args.shard.owns(token)) continue;
        const int64_t local = token / args.shard.count;
        std::byte* to = args.pages.base + s.pages[static_cast<size_t>(local / kPageTokens)] * args.pages.page_bytes() +
                        local % kPageTokens * row_bytes;
        const float* from = args.latent.row(s.row_begin + i);
        if (args.pages.dtype == DType::bf16) {
          row_kernels_.to_bf16(from, width, reinterpret_cast<uint16_t*>(to));
        } else {
          std::memcpy(to, from, static_cast<size_t>(row_bytes));
        }
      }
    });
  }
}

void CpuOps::mla(const MlaArgs& args) const {
  const bool round = precision() == Precision::bf16;
  const int64_t enough = 2 * pool().threads();
  std::vector<Item> items = cut(args, round, kBlockLanes);
  if (pool().threads() > 1 && static_cast<int64_t>(items.size()) < enough) items = cut(args, round, kSplitLanes);
  // Blocks whose rows all come before the shard's first token have no partition: their results are known.
  for (const Item& item : items) {
    if (item.partitions() == 0) finish(row_kernels_, item, {});
  }
  std::erase_if(items, [](const Item& item) { return item.partitions() == 0; });
  const bool shared = pool().threads() > 1 && static_cast<int64_t>(items.size()) < enough;
  if (shared) {
    attend_shared(row_kernels_, pool(), items);
  } else {
    pool().parallel_for(static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) attend_whole(row_kernels_, items[static_cast<size_t>(i)]);
    });
  }
}

namespace {

// One row and head of merge_contexts. `space` holds what the parts that saw something give.
struct MergeSpace {
  std::vector<const float*> parts;
  std::vector<float> weights;
};

void merge_head(const RowKernels& kernels, const MergeArgs& args, int64_t t, int64_t head, bool round,
                MergeSpace& space) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const int64_t latent = args.out.cols / args.lse.front().cols;
  float* out = args.out.row(t) + head * latent;
  float top = kNothing;
  space.parts.clear();
  space.weights.clear();
  for (size_t r = 0; r < args.ctx.size(); ++r) {
    const float lse = args.lse[r].row(t)[head];
    if (lse == kNothing) continue;
    top = std::max(top, lse);  // a NaN leaves it
    space.parts.push_back(args.ctx[r].row(t) + head * latent);
    space.weights.push_back(lse);
  }
  if (space.parts.empty()) {
    std::fill_n(out, latent, 0.0F);
    return;
  }
  const auto count = static_cast<int64_t>(space.parts.size());
  for (float& w : space.weights) w -= top;
  kernels.exp(space.weights.data(), count, space.weights.data());
  kernels.weighted_mean_row(space.parts.data(), space.weights.data(), count, latent, round, out);
}

}  // namespace

void CpuOps::merge_contexts(const MergeArgs& args) const {
  if (args.ctx.size() == 1) {
    const ConstRows from = args.ctx.front();
    for (int64_t t = 0; t < args.out.rows; ++t) {
      if (from.row(t) != args.out.row(t)) std::copy_n(from.row(t), args.out.cols, args.out.row(t));
    }
    return;
  }
  const bool round = precision() == Precision::bf16;
  const int64_t heads = args.lse.front().cols;
  pool().parallel_for(args.out.rows * heads, 16, [&](int64_t begin, int64_t end) {
    MergeSpace space;
    for (int64_t i = begin; i < end; ++i) merge_head(row_kernels_, args, i / heads, i % heads, round, space);
  });
}

}  // namespace trireme::ops::cpu
