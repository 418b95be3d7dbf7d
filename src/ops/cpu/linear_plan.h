// How one matrix product is cut for threads: items of row tiles by panels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/linear_kernels.h"

namespace trireme::ops::cpu {

struct LinearPlan {
  int64_t tiles = 0;       // row tiles in all
  int64_t panels = 0;      // in all
  int64_t item_tiles = 0;  // of an item
  int64_t item_panels = 0;

  int64_t tile_items() const { return (tiles + item_tiles - 1) / item_tiles; }
  int64_t panel_items() const { return (panels + item_panels - 1) / item_panels; }
  int64_t items() const { return tile_items() * panel_items(); }

  // Item i; neighbours in i are neighbours in memory.
  void run(const LinearPath& path, const LinearJob& job, int64_t item, std::byte* scratch) const {
    const int64_t tile = item / panel_items() * item_tiles;
    const int64_t panel = item % panel_items() * item_panels;
    path.multiply(job, tile, std::min(tile + item_tiles, tiles), panel, std::min(panel + item_panels, panels), scratch);
  }
};

// Products below this many weights (of about 10 microseconds) are not worth waking another thread.
inline constexpr int64_t kSmallProduct = 64 * 1024;
inline constexpr int64_t kTallItemPanels = 8;

inline LinearPlan plan_linear(const LinearPath& path, const LinearJob& job, int threads) {
  LinearPlan plan;
  plan.tiles = (job.row_count + path.tile_rows - 1) / path.tile_rows;
  plan.panels = job.layout.panels;
  plan.item_tiles = plan.tiles;
  plan.item_panels = plan.panels;
  // Reading a weight from memory costs about as much as multiplying it by a dozen rows.
  const int64_t cost = job.outputs * job.inputs * std::max<int64_t>(1, job.row_count / 12);
  if (threads == 1 || cost < kSmallProduct) return plan;

  const int64_t groups = (plan.panels + path.group_panels - 1) / path.group_panels;
  const int64_t wanted = threads * int64_t{8};
  // Items of many row tiles are work enough at few panels.
  const int64_t most = plan.tiles > 1 ? std::max<int64_t>(1, kTallItemPanels / path.group_panels) : groups;
  const int64_t item_groups = std::clamp<int64_t>(groups / wanted, 1, most);
  plan.item_panels = item_groups * path.group_panels;
  // Few outputs: cut the rows as well.
  if (plan.items() < wanted / 2) {
    const int64_t cuts = std::min(plan.tiles, (wanted / 2 + plan.panel_items() - 1) / plan.panel_items());
    plan.item_tiles = std::min(plan.item_tiles, (plan.tiles + cuts - 1) / cuts);
  }
  return plan;
}

}  // namespace trireme::ops::cpu
