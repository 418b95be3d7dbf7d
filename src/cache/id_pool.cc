#include "cache/id_pool.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace trireme::cache {

IdPool::IdPool(std::string name, int64_t count) : name_(std::move(name)) {
  if (count < 0 || count > kMostIds)
    throw Failure(fmt::format("a pool of {} {}s cannot be; the count must be from 0 to {}", count, name_, kMostIds));
  taken_.resize(static_cast<size_t>(count), false);
  free_.reserve(static_cast<size_t>(count));
  for (int64_t id = count - 1; id >= 0; --id) free_.push_back(static_cast<int32_t>(id));
}

bool IdPool::is_taken(int32_t id) const { return id >= 0 && id < total() && taken_[static_cast<size_t>(id)]; }

int32_t IdPool::take() {
  if (free_.empty())
    throw Failure(fmt::format("no {} is free of {}; a {} was taken without asking first", name_, total(), name_));
  const int32_t id = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(id)] = true;
  return id;
}

bool IdPool::take(int64_t count, std::vector<int32_t>& out) {
  if (count > free()) return false;
  for (int64_t i = 0; i < count; ++i) out.push_back(take());
  return true;
}

void IdPool::give_back(int32_t id) {
  if (!is_taken(id)) {
    const char* what = id < 0 || id >= total() ? "not of this pool" : "free already";
    throw Failure(fmt::format("{} {} was given back but is {} ({} in the pool)", name_, id, what, total()));
  }
  taken_[static_cast<size_t>(id)] = false;
  free_.push_back(id);
}

void IdPool::give_back(std::span<const int32_t> ids) {
  for (const int32_t id : ids) give_back(id);
}

}  // namespace trireme::cache
