#include "text/merge.h"

#include <fmt/format.h>

#include <limits>
#include <queue>

#include "base/error.h"

namespace trireme::text {

namespace {

constexpr size_t kShortPiece = 96;  // bytes up to which scanning beats a queue
constexpr TokenId kNever = std::numeric_limits<TokenId>::max();

TokenId rank_or_never(const RankTable& ranks, std::string_view bytes) {
  const TokenId id = ranks.find(bytes);
  return id == RankTable::kNone ? kNever : id;
}

}  // namespace

RankTable::RankTable(const std::vector<std::string>& tokens, const std::string& where) {
  ids_.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& bytes = tokens[id];
    if (bytes.empty()) continue;
    const auto [it, fresh] = ids_.emplace(bytes, static_cast<TokenId>(id));
    if (!fresh) throw BadInput(fmt::format("{}: ranks {} and {} have the same bytes", where, it->second, id));
    longest_ = std::max(longest_, bytes.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(static_cast<uint8_t>(byte));
    if (find(std::string_view(&c, 1)) == kNone) {
      throw BadInput(
          fmt::format("{}: the single byte 0x{:02X} has no rank, so some text could not be encoded", where, byte));
    }
  }
}

void merge_short(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& ids) {
  struct Part {
    size_t begin;
    TokenId pair;  // rank of this part joined with the next
  };
  std::vector<Part> parts;
  parts.reserve(piece.size() + 1);
  for (size_t i = 0; i < piece.size(); ++i) {
    parts.push_back({i, i + 1 < piece.size() ? rank_or_never(ranks, piece.substr(i, 2)) : kNever});
  }
  parts.push_back({piece.size(), kNever});
  const auto pair_rank = [&](size_t i) {
    if (i + 2 >= parts.size()) return kNever;
    return rank_or_never(ranks, piece.substr(parts[i].begin, parts[i + 2].begin - parts[i].begin));
  };
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].pair < parts[best].pair) best = i;
    }
    if (parts[best].pair == kNever) break;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    parts[best].pair = pair_rank(best);
    if (best > 0) parts[best - 1].pair = pair_rank(best - 1);
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    ids.push_back(ranks.find(piece.substr(parts[i].begin, parts[i + 1].begin - parts[i].begin)));
  }
}

void merge_long(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& ids) {
  // Part i begins at byte i and ends at end[i]; end[i] == 0 marks a byte that was merged into a part to its left.
  const size_t size = piece.size();
  std::vector<size_t> end(size);
  std::vector<size_t> previous(size);
  struct Candidate {
    TokenId rank;
    size_t begin;
    size_t stop;  // end of the second part; says whether the candidate is still the pair that it was
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : begin > other.begin;
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](size_t begin) {
    const size_t next = end[begin];
    if (next >= size) return;
    const TokenId rank = rank_or_never(ranks, piece.substr(begin, end[next] - begin));
    if (rank != kNever) queue.push({rank, begin, end[next]});
  };
  for (size_t i = 0; i < size; ++i) {
    end[i] = i + 1;
    previous[i] = i == 0 ? size : i - 1;
  }
  for (size_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const size_t second = end[top.begin];
    if (second == 0 || second >= size || end[second] != top.stop) continue;  // one of the two parts is no longer there
    end[top.begin] = top.stop;
    end[second] = 0;
    if (top.stop < size) previous[top.stop] = top.begin;
    offer(top.begin);
    if (previous[top.begin] < size) offer(previous[top.begin]);
  }
  for (size_t i = 0; i < size; i = end[i]) ids.push_back(ranks.find(piece.substr(i, end[i] - i)));
}

void encode_piece(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& ids) {
  const TokenId whole = ranks.find(piece);
  if (whole != RankTable::kNone) {
    ids.push_back(whole);
  } else if (piece.size() <= kShortPiece) {
    merge_short(ranks, piece, ids);
  } else {
    merge_long(ranks, piece, ids);
  }
}

}  // namespace trireme::text
