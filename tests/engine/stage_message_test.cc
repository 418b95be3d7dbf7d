#include "engine/stage_message.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::engine {
namespace {

StageHeader sample() {
  StageHeader header;
  header.kind = MessageKind::proxy;
  header.from = 7;
  header.seq = 0x0102030405060708;
  header.micro_batch = 0x1122334455667788;
  header.slot = 17;
  header.digest = 0xfedcba9876543210;
  header.rows = 16384;
  header.bank_rows = 5;
  header.columns = 7168;
  return header;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(StageMessage, HeaderSurvivesTheWire) {
  EXPECT_EQ(decode_header(encode_header(sample())), sample());
  StageHeader largest = sample();
  largest.kind = MessageKind::bank;
  largest.from = largest.slot = (int64_t{1} << 32) - 1;
  largest.seq = largest.micro_batch = INT64_MAX;
  largest.rows = kMaxMessageRows;
  largest.bank_rows = kMaxMessageBankRows;
  largest.columns = kMaxMessageColumns;
  EXPECT_EQ(decode_header(encode_header(largest)), largest);
  EXPECT_EQ(body_values(largest), int64_t{1} << 56);
}

TEST(StageMessage, BytesAreLittleEndianWithMagicAndVersion) {
  const StageHeaderBytes bytes = encode_header(sample());
  const auto at = [&](size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "TSTG");
  EXPECT_EQ(at(4), 1);
  EXPECT_EQ(at(6), 2);
  EXPECT_EQ(at(16), 0x08);  // lowest byte of seq
  EXPECT_EQ(at(23), 0x01);
}

TEST(StageMessage, FieldsOutOfRangeAreNotEncoded) {
  const auto refused = [](auto member, int64_t value) {
    StageHeader header = sample();
    header.*member = value;
    return !refusal([&] { encode_header(header); }).empty();
  };
  EXPECT_TRUE(refused(&StageHeader::from, -1));
  EXPECT_TRUE(refused(&StageHeader::seq, -1));
  EXPECT_TRUE(refused(&StageHeader::micro_batch, -1));
  EXPECT_TRUE(refused(&StageHeader::slot, int64_t{1} << 32));
  EXPECT_TRUE(refused(&StageHeader::rows, kMaxMessageRows + 1));
  EXPECT_TRUE(refused(&StageHeader::bank_rows, kMaxMessageBankRows + 1));
  EXPECT_TRUE(refused(&StageHeader::columns, kMaxMessageColumns + 1));
}

TEST(StageMessage, RandomBytesAreRefused) {
  for (uint64_t round = 0; round < 20000; ++round) {
    // Half of them have the right size; half of those the right magic, version and kind, so that fields are reached.
    const uint64_t size = round % 2 == 0 ? kStageHeaderBytes : mix64(round) % 100;
    std::vector<std::byte> bytes(size);
    for (uint64_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(mix64(round * 1000 + i));
    if (round % 4 == 0) {
      const StageHeaderBytes good = encode_header(sample());
      std::copy_n(good.begin(), 8, bytes.begin());
    }
    EXPECT_THROW(decode_header(bytes), Failure) << "round " << round;
  }
}

TEST(StageMessage, EveryFlippedBitIsFound) {
  const StageHeaderBytes good = encode_header(sample());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    StageHeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_THROW(check_header(sample(), decode_header(bad)), Failure) << "bit " << bit;
  }
}

TEST(StageMessage, DifferenceNamesEdgeKindFieldAndBothValues) {
  EXPECT_NO_THROW(check_header(sample(), sample()));
  const auto says = [](const std::function<void(StageHeader&)>& change, const std::vector<std::string>& words) {
    StageHeader expected = sample(), got;
    expected.seq = 40;
    got = expected;
    change(got);
    const std::string text = refusal([&] { check_header(expected, got); });
    EXPECT_NE(text.find("7 -> 8, PROXY"), std::string::npos) << text;
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  };
  says([](StageHeader& h) { h.kind = MessageKind::bank; }, {"kind", "BANK", "PROXY"});
  says([](StageHeader& h) { h.from = 6; }, {"sending stage is 6", "expected 7"});
  says([](StageHeader& h) { h.seq = 41; }, {"seq is 41", "expected 40"});
  says([](StageHeader& h) { h.micro_batch = 3; }, {"micro-batch is 3", "expected 1234605616436508552"});
  says([](StageHeader& h) { h.slot = 0; }, {"slot is 0", "expected 17"});
  says([](StageHeader& h) { h.digest = 1, h.rows = 2; },
       {"batch digest is 0x0000000000000001", "expected 0xfedcba9876543210"});
  says([](StageHeader& h) { h.rows = 2; }, {"rows is 2", "expected 16384"});
  says([](StageHeader& h) { h.bank_rows = 4; }, {"bank rows is 4", "expected 5"});
  says([](StageHeader& h) { h.columns = 64; }, {"columns is 64", "expected 7168"});
}

TEST(StageMessage, DigestTellsBatchesApart) {
  EXPECT_EQ(batch_digest({}), 0u);
  const std::vector<std::vector<int64_t>> batches = {
      {0}, {0, 0}, {1}, {-1}, {1, 2, 3, 4}, {1, 2, 4, 3}, {2, 1, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4, 0}};
  std::set<uint64_t> seen;
  for (const auto& batch : batches) {
    const uint64_t digest = batch_digest(batch);
    EXPECT_NE(digest, 0u);
    EXPECT_EQ(digest, batch_digest(std::vector<int64_t>(batch)));
    seen.insert(digest);
  }
  EXPECT_EQ(seen.size(), batches.size());
}

TEST(StageMessage, BodyIsBankRowsAndForProxyTheHiddenRow) {
  StageHeader header = sample();
  EXPECT_EQ(body_values(header), 16384 * int64_t{7168} * 6);
  header.kind = MessageKind::bank;
  EXPECT_EQ(body_values(header), 16384 * int64_t{7168} * 5);
  header.rows = 0;
  EXPECT_EQ(body_values(header), 0);
}

}  // namespace
}  // namespace trireme::engine
