#include "layout/built_in.h"

#include <array>

namespace trireme::layout {
namespace {

// 16 GPUs on two hosts as 16 stages. Two stages make one block of the residual bank (12 layers); the last is short, for
// it has the output side. Stage 7 sends over the network between the hosts: there inherited rows go ahead.
constexpr std::string_view kPrefillPp16 = R"(
[[instance]]
name = "prefill"
role = "prefill"
pipeline = [7, 5, 7, 5, 7, 5, 7, 5, 7, 5, 7, 5, 7, 5, 6, 3]
ranks_per_host = 8
[instance.prefill]
chunk_tokens = 16384
async_depth = 2
[instance.eager_bank]
stages = [7]
)";

// 16 batches in lock-step; what every rank would hold whole is shared by the 8 ranks of a host.
constexpr std::string_view kDecodeDp16 = R"(
[[instance]]
name = "decode"
role = "decode"
attention = { dp = 16 }
experts = { ep = 16, max_dispatch_tokens = 144 }
weight_shard = 8
vocab = 8
ranks_per_host = 8
)";

// Two batches; the 8 ranks of a host divide heads and the tokens of the latent cache.
constexpr std::string_view kDecodeDp2Dcp8 = R"(
[[instance]]
name = "decode"
role = "decode"
attention = { dp = 2, dcp = 8 }
experts = { ep = 16, max_dispatch_tokens = 128 }
weight_shard = 8
ranks_per_host = 8
)";

// 32 GPUs on four hosts, two stages a host.
constexpr std::string_view kPrefillTp4Pp8Ep4 = R"(
[[instance]]
name = "prefill"
role = "prefill"
pipeline = 8
attention = { tp = 4 }
experts = { ep = 4 }
ranks_per_host = 8
[instance.prefill]
chunk_tokens = 16384
)";

// 32 GPUs on four hosts that divide the heads of one batch.
constexpr std::string_view kDecodeTp32 = R"(
[[instance]]
name = "decode"
role = "decode"
attention = { tp = 32 }
experts = { ep = 32 }
vocab = 8
ranks_per_host = 8
)";

constexpr std::array kBuiltIns = {
    BuiltIn{"prefill-pp16", kPrefillPp16},      BuiltIn{"decode-dp16", kDecodeDp16},
    BuiltIn{"decode-dp2-dcp8", kDecodeDp2Dcp8}, BuiltIn{"prefill-tp4-pp8-ep4", kPrefillTp4Pp8Ep4},
    BuiltIn{"decode-tp32", kDecodeTp32},
};

}  // namespace

std::span<const BuiltIn> built_ins() { return kBuiltIns; }

}  // namespace trireme::layout
