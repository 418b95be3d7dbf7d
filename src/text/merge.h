// Byte-pair merging of one piece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::text {

using TokenId = int32_t;

// Bytes to id for a vocabulary that it does not own; the strings must stay where they are.
class RankTable {
 public:
  static constexpr TokenId kNone = -1;
  // Throws BadInput (beginning with `where`) if bytes occur twice or one of the 256 single bytes is missing.
  RankTable(const std::vector<std::string>& tokens, const std::string& where);
  TokenId find(std::string_view bytes) const {
    if (bytes.size() > longest_) return kNone;
    const auto it = ids_.find(bytes);
    return it == ids_.end() ? kNone : it->second;
  }

 private:
  std::unordered_map<std::string_view, TokenId> ids_;
  size_t longest_ = 0;  // bytes of the longest token
};

// Appends the ids of `piece`: its own id if it is a token; otherwise single bytes, of which the neighbouring pair whose
// joined bytes have the lowest id is merged (the leftmost of equals) until no pair is a token.
void encode_piece(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& ids);

// The two ways to do that merging, with equal results: n^2 steps with little overhead, and n log n.
void merge_short(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& ids);
void merge_long(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& ids);

}  // namespace trireme::text
