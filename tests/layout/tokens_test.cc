#include "layout/tokens.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace trireme::layout {
namespace {

TEST(Tokens, MatchHandingThemOutOneByOne) {
  for (const int64_t count : {1, 2, 3, 8}) {
    std::vector<int64_t> rows(static_cast<size_t>(count), 0);  // of each rank so far
    for (int64_t position = 0; position < 520; ++position) {
      for (int64_t rank = 0; rank < count; ++rank) {
        ASSERT_EQ(local_length(position, {rank, count}), rows[static_cast<size_t>(rank)]) << count << " " << position;
      }
      const int64_t owner = position - (position / count) * count;
      ASSERT_EQ(token_owner(position, count), owner);
      ASSERT_EQ(local_row(position, count), rows[static_cast<size_t>(owner)]);
      ASSERT_EQ(position_of(rows[static_cast<size_t>(owner)], {owner, count}), position);
      ++rows[static_cast<size_t>(owner)];
    }
  }
}

// What a query at position p may see on a rank: exactly the rank's rows of positions 0..p.
TEST(Tokens, AQuerySeesTheRowsUpToItself) {
  for (const int64_t count : {1, 2, 3, 8}) {
    for (int64_t query = 0; query < 40; ++query) {
      int64_t seen = 0;
      for (int64_t rank = 0; rank < count; ++rank) {
        const int64_t rows = local_length(query + 1, {rank, count});
        for (int64_t row = 0; row < rows; ++row) EXPECT_LE(position_of(row, {rank, count}), query);
        EXPECT_GT(position_of(rows, {rank, count}), query);
        seen += rows;
      }
      EXPECT_EQ(seen, query + 1);
    }
  }
}

}  // namespace
}  // namespace trireme::layout
