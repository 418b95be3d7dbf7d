// Random work for one attention group: sequences that start, grow, are verified and end, with slots and pages. What it
// says depends on the seed and the group alone, so every rank of the group (and a check afterwards) can make its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "base/rng.h"
#include "cache/id_pool.h"
#include "model/batch.h"

namespace trireme::testing {

class Dice {
 public:
  Dice(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  bool chance(double probability) { return next() < probability; }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() * static_cast<double>(most - least + 1));
  }

 private:
  double next() { return uniform_at(seed_, count_++, stream_); }
  uint64_t seed_;
  uint64_t stream_;
  uint64_t count_ = 0;
};

struct ScriptOptions {
  uint64_t seed = 1;
  int64_t group = 0;
  int64_t groups = 1;
  int64_t vocab = 0;
  int64_t slots = 4;
  int64_t pages = 24;
  int64_t page_tokens = 64;
  int64_t most_rows = 48;     // of a batch
  int64_t most_tokens = 200;  // of a sequence
};

// What a step is, the same for all groups.
enum class Mode : uint8_t { usual, idle, single };

class Script {
 public:
  // A wanted row of logits and whether its token stayed part of the sequence.
  struct Wanted {
    int64_t sequence = 0;
    int64_t position = 0;
    bool kept = true;
  };
  struct Step {
    model::Batch batch;
    std::vector<int64_t> accepted;  // one a segment; for those without commit
    std::vector<Wanted> wanted;     // one a logit row
    bool verifies() const {
      return std::any_of(batch.segments.begin(), batch.segments.end(), [](const auto& s) { return !s.commit; });
    }
  };

  explicit Script(const ScriptOptions& options)
      : options_(options),
        dice_(options.seed, static_cast<uint64_t>(options.group)),
        slots_("slot", options.slots),
        pages_("page", options.pages) {}

  // 5 % of the steps are idle everywhere, 5 % have one request in one group.
  static Mode mode_of(uint64_t seed, int64_t step) {
    const double u = uniform_at(seed, static_cast<uint64_t>(step), 1000);
    return u < 0.05 ? Mode::idle : u < 0.1 ? Mode::single : Mode::usual;
  }

  Step next() {
    const auto number = static_cast<uint64_t>(step_);
    const Mode mode = mode_of(options_.seed, step_++);
    Step step;
    if (mode == Mode::idle) return step;
    if (mode == Mode::single) {
      const auto chosen =
          static_cast<int64_t>(uniform_at(options_.seed, number, 1001) * static_cast<double>(options_.groups));
      if (chosen != options_.group) return step;
      if (active_.empty()) start();
      advance(active_.front(), 1, step);
    } else {
      if (dice_.chance(0.15)) return step;
      while (slots_.free() > 0 && dice_.chance(0.4)) start();
      for (Active& sequence : active_) {
        const int64_t room = options_.most_rows - step.batch.rows();
        if (room > 0 && dice_.chance(0.75)) advance(sequence, room, step);
      }
    }
    end_some();
    return step;
  }

  // Tokens that each sequence kept, by its number.
  const std::map<int64_t, std::vector<int32_t>>& sequences() const { return sequences_; }

 private:
  struct Active {
    int64_t sequence = 0;
    int64_t prompt_left = 0;
    int32_t slot = 0;
    std::vector<int32_t> pages;
  };

  void start() {
    Active a;
    a.sequence = started_++;
    const int64_t kind = dice_.between(0, 19);
    a.prompt_left = kind < 14 ? dice_.between(1, 12) : kind < 19 ? dice_.between(13, 40) : dice_.between(60, 140);
    a.slot = slots_.take();
    sequences_[a.sequence] = {};
    active_.push_back(std::move(a));
  }

  // Adds a piece of a prompt, a decoded token or tokens to verify.
  void advance(Active& a, int64_t room, Step& step) {
    std::vector<int32_t>& kept = sequences_[a.sequence];
    const auto position = static_cast<int64_t>(kept.size());
    const bool prefill = a.prompt_left > 0;
    const bool verify = !prefill && room > 1 && dice_.chance(0.3);
    int64_t rows = 1;
    if (prefill) rows = std::min({a.prompt_left, dice_.between(1, 24), room});
    if (verify) rows = std::min(dice_.between(2, 5), room);
    const int64_t needed = (position + rows + options_.page_tokens - 1) / options_.page_tokens - std::ssize(a.pages);
    if (needed > 0 && !pages_.take(needed, a.pages)) return;
    const int64_t accepted = verify ? dice_.between(0, rows) : rows;
    const bool all_wanted = verify || dice_.chance(0.1);
    const bool last_wanted = (!prefill || rows == a.prompt_left) && dice_.chance(0.9);
    for (int64_t r = 0; r < rows; ++r) {
      const auto token = static_cast<int32_t>(dice_.between(0, options_.vocab - 1));
      if (all_wanted || (last_wanted && r + 1 == rows)) {
        step.batch.logit_rows.push_back(step.batch.rows());
        step.wanted.push_back({a.sequence, position + r, r < accepted});
      }
      step.batch.tokens.push_back(token);
      if (r < accepted) kept.push_back(token);
    }
    step.batch.segments.push_back({rows, position, a.slot, a.pages, !verify, {}});
    step.accepted.push_back(verify ? accepted : 0);
    if (prefill) a.prompt_left -= rows;
  }

  void end_some() {
    for (size_t i = 0; i < active_.size();) {
      const bool full = std::ssize(sequences_[active_[i].sequence]) + 5 > options_.most_tokens;
      if (full || dice_.chance(0.05)) {
        slots_.give_back(active_[i].slot);
        pages_.give_back(active_[i].pages);
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  ScriptOptions options_;
  Dice dice_;
  cache::IdPool slots_;
  cache::IdPool pages_;
  int64_t step_ = 0;
  int64_t started_ = 0;
  std::vector<Active> active_;
  std::map<int64_t, std::vector<int32_t>> sequences_;
};

}  // namespace trireme::testing
