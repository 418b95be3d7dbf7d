// The plan of memory against what a loaded model took, line by line.
#include "ledger/ledger.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ledger/forms.h"
#include "ops/select.h"
#include "support/scarce.h"
#include "support/tensors.h"

namespace trireme::ledger {
namespace {

template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Account, GivesZeroedMemoryUpToTheLine) {
  Account account(Plan{{{"a", 100, ""}, {"b", 8, ""}}});
  const Buffer first = account.take("a", 60);
  EXPECT_EQ(first.bytes(), 60);
  EXPECT_EQ(first.as<uint8_t>()[59], 0);
  EXPECT_EQ(account.taken("a"), 60);
  EXPECT_EQ(account.taken("b"), 0);
  EXPECT_EQ(failure_of([&] { account.take("a", 41); }),
            "memory line a holds 100 bytes, 60 of them taken: 41 more do not fit");
  EXPECT_EQ(account.taken("a"), 60);
  EXPECT_EQ(account.take("a", 40).bytes(), 40);
  EXPECT_EQ(failure_of([&] { account.take("c", 1); }), "the memory plan has no line \"c\"");
}

TEST(Account, SaysForWhatMemoryIsMissing) {
  if (!testing::kScarcityWorks) GTEST_SKIP() << "sanitizers end the process instead";
  constexpr int64_t kFar = int64_t{1} << 60;  // more than any processor addresses
  Account account(Plan{{{"pool.x", kFar, ""}}});
  EXPECT_EQ(failure_of([&] { account.take("pool.x", kFar); }),
            "out of memory: the system does not give 1152921504606846976 bytes for memory line pool.x");
}

TEST(Plan, AddsUp) {
  const Plan plan{{{"a", 100, ""}, {"b", 8, ""}}};
  EXPECT_EQ(plan.total(), 108);
  EXPECT_EQ(plan.line("b").bytes, 8);
}

TEST(Plan, PoolsOfNano) {
  const auto dir = trireme::testing::source_dir() / "models/k3-nano";
  const auto checkpoint = checkpoint::Checkpoint::open(dir);
  ThreadPool pool(1);
  const auto bf16 = ops::make_ops("reference", ops::Precision::bf16, pool);
  // 4 MLA layers x 64 tokens x (512 + 64) x 2 B; 9 KDA layers x (8 heads x 128 x 128 + 3 taps x 3072) x 4 B.
  EXPECT_EQ(page_bytes(checkpoint.config(), ops::Precision::bf16), 4 * 64 * 576 * 2);
  EXPECT_EQ(page_bytes(checkpoint.config(), ops::Precision::f32), 4 * 64 * 576 * 4);
  EXPECT_EQ(kda_slot_bytes(checkpoint.config()), 9 * (8 * 128 * 128 + 3 * 3072) * 4);
  const Plan plan = plan_memory(checkpoint, *bf16, {5, 3});
  EXPECT_EQ(plan.line("pool.mla_pages").bytes, 5 * 4 * 64 * 576 * 2);
  EXPECT_EQ(plan.line("pool.kda_state").bytes, 3 * kda_slot_bytes(checkpoint.config()));
  // W_kc and W_vc have together as many elements as kv_b.
  EXPECT_EQ(plan.line("weights.derived").bytes, 4 * 2048 * 512 * 2);
  EXPECT_EQ(plan.line("weights.embedding").bytes, 2048 * 128 * 2);
  for (const Line& line : plan.lines) EXPECT_FALSE(line.formula.empty()) << line.name;
}

TEST(Forms, OfTensors) {
  using checkpoint::Group;
  const auto form = [](const std::string& name, std::vector<int64_t> shape, Group group) {
    return form_of({name, std::move(shape), {}, group, false, 0});
  };
  EXPECT_EQ(form("embed_tokens", {10, 4}, Group::embedding), Form::table);
  EXPECT_EQ(form("layers.3.self_attn.kv_b_proj", {8, 4}, Group::mla), Form::absorbed);
  EXPECT_EQ(form("layers.3.mlp_res_proj", {1, 4}, Group::norms), Form::folded);
  EXPECT_EQ(form("layers.3.mlp_res_norm", {4}, Group::norms), Form::vector);
  EXPECT_EQ(form("layers.0.self_attn.q_conv1d", {8, 1, 4}, Group::kda), Form::vector);
  EXPECT_EQ(form("layers.0.self_attn.b_proj", {1, 4}, Group::kda), Form::packed);
}

}  // namespace
}  // namespace trireme::ledger
