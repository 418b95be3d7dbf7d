#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/draft_windows.h"
#include "cache/kda_cache.h"
#include "cache/latent_cache.h"

namespace trireme::cache {
namespace {

checkpoint::ModelConfig config() {
  using checkpoint::LayerKind;
  checkpoint::ModelConfig c;
  c.kinds = {LayerKind::kda, LayerKind::kda, LayerKind::mla, LayerKind::kda, LayerKind::mla};
  c.layers = 5;
  c.kda.heads = 2;
  c.kda.dim = 16;
  c.mla.kv_lora = 24;
  c.mla.rope = 8;
  return c;
}

constexpr int64_t kPages = 5;
constexpr int64_t kSlots = 3;
constexpr int64_t kPageBytes = 2 * 64 * 32 * 2;                         // layers, tokens, width, bfloat16
constexpr int64_t kSlotBytes = 3 * (2 * 16 * 16 + 3 * 3 * 2 * 16) * 4;  // layers, recurrent + convolution, float32

ledger::Plan plan(int64_t latent_bytes = kPages * kPageBytes, int64_t kda_bytes = kSlots * kSlotBytes) {
  return {{{"pool.mla_pages", latent_bytes, ""}, {"pool.kda_state", kda_bytes, ""}}};
}

TEST(LatentCache, TakesThePlannedBytesAndLaysLayersApart) {
  ledger::Account account(plan());
  LatentCache cache(config(), ops::Precision::bf16, kPages, account);
  EXPECT_EQ(account.taken("pool.mla_pages"), kPages * kPageBytes);
  ASSERT_EQ(cache.layers(), 2);
  EXPECT_EQ(cache.layer(0).width, 32);
  EXPECT_EQ(cache.layer(0).dtype, DType::bf16);
  EXPECT_EQ(cache.layer(1).base - cache.layer(0).base, kPages * cache.layer(0).page_bytes());
  EXPECT_EQ(cache.pages().free(), kPages);
  EXPECT_EQ(ledger::page_bytes(config(), ops::Precision::bf16), kPageBytes);
}

TEST(LatentCache, Float32PagesAreTwiceAsLarge) {
  ledger::Account account(plan(2 * kPages * kPageBytes));
  LatentCache cache(config(), ops::Precision::f32, kPages, account);
  EXPECT_EQ(cache.layer(0).dtype, DType::f32);
}

TEST(LatentCache, RefusesAnotherSizeThanPlanned) {
  ledger::Account account(plan());
  EXPECT_THROW(LatentCache(config(), ops::Precision::bf16, kPages - 1, account), Failure);
}

TEST(KdaCache, StatesOfSlotsAndLayersDoNotOverlap) {
  ledger::Account account(plan());
  KdaCache cache(config(), kSlots, account);
  EXPECT_EQ(account.taken("pool.kda_state"), kSlots * kSlotBytes);
  EXPECT_EQ(ledger::kda_slot_bytes(config()), kSlotBytes);
  ASSERT_EQ(cache.layers(), 3);
  // Every float of every state is written once with its own number; all numbers must survive.
  float number = 0;
  const auto each = [&](auto&& visit) {
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        for (int64_t i = 0; i < 2 * 16 * 16; ++i) visit(cache.recurrent(layer)[slot * cache.stride() + i]);
        for (int64_t i = 0; i < 3 * 3 * 32; ++i) visit(cache.conv(layer)[slot * cache.stride() + i]);
      }
    }
  };
  each([&](float& x) { x = number++; });
  EXPECT_EQ(static_cast<int64_t>(number) * 4, kSlots * kSlotBytes);
  number = 0;
  each([&](const float& x) { ASSERT_EQ(x, number++); });
}

TEST(KdaCache, RefusesAnotherSizeThanPlanned) {
  ledger::Account account(plan());
  EXPECT_THROW(KdaCache(config(), kSlots + 1, account), Failure);
}

TEST(DraftWindows, EachSlotAndLayerHasItsOwnRows) {
  ledger::Account account({{{"pool.draft_windows", 3 * 2 * 2 * 10 * 8 * 4, ""}}});
  DraftWindows windows(3, 2, 10, 8, account);
  EXPECT_EQ(account.taken("pool.draft_windows"), 3 * 2 * 2 * 10 * 8 * 4);
  EXPECT_EQ(windows.values(0, 0) - windows.keys(0, 0), 80);
  EXPECT_EQ(windows.keys(0, 1) - windows.keys(0, 0), 160);
  EXPECT_EQ(windows.keys(1, 0) - windows.keys(0, 0), 320);
  ledger::Account other({{{"pool.draft_windows", 64, ""}}});
  EXPECT_THROW(DraftWindows(3, 2, 10, 8, other), Failure);
}

}  // namespace
}  // namespace trireme::cache
