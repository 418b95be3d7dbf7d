// An engine on k3-nano and a way to wait for its answers.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/engine.h"

namespace trireme::engine {

inline std::filesystem::path nano_dir(const std::string& name = "k3-nano") {
  return std::filesystem::path(TRIREME_SOURCE_DIR) / "models" / name;
}

// Small pools, so that an engine starts fast.
inline EngineOptions nano_options() {
  EngineOptions options;
  options.model = nano_dir();
  options.threads = 1;
  options.max_running = 8;
  options.max_tokens = 4096;
  return options;
}

// Seeded tokens below the special ones.
inline std::vector<int32_t> random_prompt(uint64_t seed, int64_t tokens) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i)
    prompt.push_back(static_cast<int32_t>(uniform_at(seed, static_cast<uint64_t>(i), 77) * 1792));
  return prompt;
}

// What one request said so far. Listeners keep it alive.
class Heard {
 public:
  void operator()(const Output& output) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finish_) << "an event after the last";
    for (const OutputToken& t : output.tokens) {
      ids_.push_back(t.token);
      tokens_.push_back(t);
    }
    if (output.finish) finish_ = output.finish;
    if (!output.error.empty()) error_ = output.error;
    changed_.notify_all();
  }
  void wait_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ids_.size() >= count || finish_; });
  }
  void wait_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value(); });
  }
  std::vector<int32_t> ids() {
    const std::lock_guard lock(mutex_);
    return ids_;
  }
  std::vector<OutputToken> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::optional<FinishReason> finish() {
    const std::lock_guard lock(mutex_);
    return finish_;
  }
  std::string error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> ids_;
  std::vector<OutputToken> tokens_;
  std::optional<FinishReason> finish_;
  std::string error_;
};

struct Asked {
  RequestId id = 0;
  std::shared_ptr<Heard> heard;
};

inline SamplingParams greedy(int64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

inline Asked ask(Engine& engine, std::vector<int32_t> prompt, SamplingParams sampling, int32_t priority = 0) {
  Asked asked{0, std::make_shared<Heard>()};
  asked.id = engine.submit(
      {std::move(prompt), std::move(sampling), priority, [heard = asked.heard](const Output& o) { (*heard)(o); }});
  return asked;
}

inline void expect_pools_full(const Engine& engine) {
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.slots_free, stats.slots_total);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.requests, stats.finished + stats.cancelled + stats.failed);
}

}  // namespace trireme::engine
