// What each rank of a layout holds, counted from the model's shapes without the engine's own arithmetic.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "checkpoint/catalogue.h"
#include "layouts/layout_run.h"
#include "ledger/forms.h"

namespace trireme::testing {
namespace {

using checkpoint::CatalogueEntry;
using checkpoint::Group;
using layout::Instance;

struct Held {
  std::map<std::string, int64_t> planned;
  std::map<std::string, int64_t> taken;
  int64_t mapped = 0;
};

// "reference" packs matrices without padding, so that bytes can be counted by hand.
std::vector<Held> hold(const std::filesystem::path& model, const Instance& instance, const std::string& isa) {
  std::vector<Held> held(static_cast<size_t>(instance.ranks()));
  on_ranks(instance, [&](comm::World& world) {
    engine::RankOptions options;
    options.isa = isa;
    options.precision = ops::Precision::f32;
    options.tokens = 200;
    options.slots = 3;
    const engine::Rank rank(model, instance, options, world);
    Held& mine = held[static_cast<size_t>(world.rank())];
    for (const ledger::Line& line : rank.account().plan().lines) {
      mine.planned[line.name] = line.bytes;
      mine.taken[line.name] = rank.account().taken(line.name);
    }
    mine.mapped = rank.bytes_mapped();
  });
  return held;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where a rank stands, from the numbering alone.
struct Stand {
  Stand(const Instance& i, int64_t rank) : instance(i) {
    const int64_t stage = rank / (i.dp * i.tp);
    within = rank % (i.dp * i.tp);
    for (int64_t s = 0; s < stage; ++s) begin += i.pipeline[static_cast<size_t>(s)];
    end = begin + i.pipeline[static_cast<size_t>(stage)];
    last = stage + 1 == static_cast<int64_t>(i.pipeline.size());
  }
  bool has(const CatalogueEntry& e) const {
    if (e.layer >= 0) return begin <= e.layer && e.layer < end;
    if (e.name == "embed_tokens") return begin == 0;
    return last;
  }
  // With tied embeddings the last stage packs its head from the embedding.
  bool maps(const CatalogueEntry& e, const checkpoint::ModelConfig& c) const {
    return has(e) || (e.name == "embed_tokens" && last && c.tied_embeddings);
  }
  // Of `total` in shares of ceil(total / count): the size of share number `index`.
  static int64_t share(int64_t total, int64_t count, int64_t index) {
    const int64_t each = ceil_div(total, count);
    return std::clamp<int64_t>(total - index * each, 0, each);
  }

  const Instance& instance;
  int64_t within = 0;  // its stage
  int64_t begin = 0;   // layers
  int64_t end = 0;
  bool last = false;
};

// Bytes of a matrix as "reference" keeps it: rows as stored (MXFP4 for experts of K3 releases, BF16 otherwise).
int64_t matrix_bytes(bool mxfp4, int64_t rows, int64_t cols) {
  return mxfp4 ? rows * (cols / 2 + cols / 32) : rows * cols * 2;
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
}

// What the rank keeps of an entry, in bytes; `sharded` says that it is its block in the weight shard.
int64_t entry_bytes(const CatalogueEntry& e, const checkpoint::ModelConfig& c, const Stand& at, bool mxfp4,
                    bool* sharded) {
  const Instance& i = at.instance;
  const int64_t tp = i.tp;
  *sharded = false;
  if (e.name.ends_with("_res_proj")) return 0;
  if (e.name.ends_with("kv_b_proj")) {
    return 4 * c.mla.kv_lora * (c.mla.heads / tp * i.dcp * c.mla.nope + c.mla.heads / tp * c.mla.value);
  }
  if (e.group == Group::experts) {
    const size_t mark = e.name.find(".experts.") + 9;
    const int64_t expert = std::stoll(e.name.substr(mark));
    const bool mine = expert / (c.moe.experts / i.ep) == at.within % i.ep;
    return mine ? matrix_bytes(mxfp4, e.shape[0], e.shape[1]) : 0;
  }
  if (e.name == "embed_tokens" || e.name == "lm_head") {
    return matrix_bytes(false, Stand::share(c.vocab, i.vocab, at.within % i.vocab), e.shape[1]);
  }
  const bool of_heads = (e.group == Group::kda || e.group == Group::mla) &&
                        !ends_with_any(e.name, {"f_a_proj", "g_a_proj", "q_a_proj", "kv_a_proj_with_mqa", "o_norm",
                                                "q_a_layernorm", "kv_a_layernorm"});
  if (e.group == Group::norms || e.shape.size() != 2) return 4 * e.elements() / (of_heads ? tp : 1);
  int64_t rows = e.shape[0];
  int64_t cols = e.shape[1];
  if (of_heads) {
    (e.name.ends_with("o_proj") ? cols : rows) /= tp;
    if (ends_with_any(e.name, {"q_b_proj", "self_attn.q_proj"}) && e.group == Group::mla) rows *= i.dcp;
  }
  if (e.group == Group::dense) {
    int64_t& channels = e.name.ends_with("down_proj") ? cols : rows;
    channels = Stand::share(channels, tp, at.within % tp);
  }
  const bool whole_heads = tp == 1 && of_heads && !e.name.ends_with("b_proj");
  *sharded = i.weight_shard > 1 && e.layer > 0 &&
             (e.group == Group::latent || e.group == Group::shared || whole_heads ||
              (tp == 1 && ends_with_any(e.name, {"f_b_proj", "g_b_proj", "q_b_proj"})));
  if (*sharded) rows = ceil_div(rows, i.weight_shard);
  return matrix_bytes(false, rows, cols);
}

struct Counted {
  int64_t weights = 0;
  int64_t sharded = 0;  // of them
  int64_t staging = 0;
};

Counted count(const checkpoint::ModelConfig& config, const Instance& instance, int64_t rank, bool mxfp4) {
  const Stand at(instance, rank);
  Counted counted;
  std::map<int64_t, int64_t> layers;
  for (const CatalogueEntry& e : checkpoint::catalogue(config)) {
    if (!at.has(e)) continue;
    bool sharded = false;
    const int64_t bytes = entry_bytes(e, config, at, mxfp4, &sharded);
    counted.weights += bytes;
    if (!sharded) continue;
    counted.sharded += bytes;
    layers[e.layer] += bytes;
  }
  if (config.tied_embeddings && at.last) {
    counted.weights +=
        matrix_bytes(false, Stand::share(config.vocab, instance.vocab, at.within % instance.vocab), config.hidden);
  }
  for (const auto& [layer, bytes] : layers) {
    counted.staging = std::max(counted.staging, 2 * bytes * instance.weight_shard);
  }
  return counted;
}

int64_t layers_of(const checkpoint::ModelConfig& config, const Stand& at, checkpoint::LayerKind kind) {
  return std::count(config.kinds.begin() + at.begin, config.kinds.begin() + at.end, kind);
}

int64_t line(const std::map<std::string, int64_t>& lines, const std::string& name) {
  const auto found = lines.find(name);
  return found == lines.end() ? 0 : found->second;
}

int64_t weights_in(const std::map<std::string, int64_t>& lines) {
  int64_t sum = 0;
  for (const auto& [name, bytes] : lines) {
    if (name.starts_with("weights.") && name != ledger::kStagingLine) sum += bytes;
  }
  return sum;
}

struct Shares {
  std::string name;
  std::string model;
  std::string toml;
};

void PrintTo(const Shares& shares, std::ostream* out) { *out << shares.model << ": " << shares.toml; }

class LayoutMemory : public ::testing::TestWithParam<Shares> {
 protected:
  std::filesystem::path dir_ = model_dir(GetParam().model);
  Instance instance_ = instance_of(GetParam().toml, dir_);
  checkpoint::ModelConfig config_ = checkpoint::read_config(dir_);
};

TEST_P(LayoutMemory, EveryPlannedByteIsTaken) {
  for (const Held& held : hold(dir_, instance_, "auto")) EXPECT_EQ(held.taken, held.planned);
}

TEST_P(LayoutMemory, EveryRankHoldsItsShare) {
  const bool mxfp4 = recipe_of(GetParam().model).storage == Storage::mxfp4 && !recipe_of(GetParam().model).linear;
  const std::vector<Held> held = hold(dir_, instance_, "reference");
  for (int64_t rank = 0; rank < instance_.ranks(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const std::map<std::string, int64_t>& taken = held[static_cast<size_t>(rank)].taken;
    const Counted counted = count(config_, instance_, rank, mxfp4);
    EXPECT_EQ(weights_in(taken), counted.weights);
    EXPECT_EQ(line(taken, ledger::kShardLine), counted.sharded);
    EXPECT_EQ(line(taken, ledger::kStagingLine), counted.staging);
    const Stand at(instance_, rank);
    const int64_t pages = ceil_div(200, 64 * instance_.dcp);
    EXPECT_EQ(line(taken, ledger::kPageLine), pages * layers_of(config_, at, checkpoint::LayerKind::mla) * 64 *
                                                  (config_.mla.kv_lora + config_.mla.rope) * 4);
    const int64_t width = config_.kda.heads / instance_.tp * config_.kda.dim;
    EXPECT_EQ(line(taken, ledger::kStateLine),
              3 * layers_of(config_, at, checkpoint::LayerKind::kda) * width * (config_.kda.dim + 3 * 3) * 4);
  }
}

// Experts, embedding and head exist once in every set of ranks that divides them; with one rank a stage, so does all.
TEST_P(LayoutMemory, SharesAddUpToTheWhole) {
  const std::map<std::string, int64_t> whole = hold(dir_, instance_of("", dir_), "reference").front().taken;
  std::map<std::string, int64_t> sum;
  for (const Held& held : hold(dir_, instance_, "reference")) {
    for (const auto& [name, bytes] : held.taken) sum[name] += bytes;
  }
  const int64_t ranks = instance_.ranks_per_stage();
  EXPECT_EQ(line(sum, "weights.experts"), line(whole, "weights.experts") * (ranks / instance_.ep));
  EXPECT_EQ(line(sum, "weights.embedding"), line(whole, "weights.embedding") * (ranks / instance_.vocab));
  EXPECT_EQ(line(sum, "weights.head"), line(whole, "weights.head") * (ranks / instance_.vocab));
  EXPECT_EQ(line(sum, "weights.dense"), line(whole, "weights.dense") * instance_.dp);
  if (ranks > 1) return;
  for (const auto& [name, bytes] : whole) EXPECT_EQ(line(sum, name), bytes) << name;
}

TEST_P(LayoutMemory, ARankMapsItsLayersOnly) {
  const checkpoint::Checkpoint whole = checkpoint::Checkpoint::open(dir_);
  const std::vector<Held> held = hold(dir_, instance_, "auto");
  for (int64_t rank = 0; rank < instance_.ranks(); ++rank) {
    const Stand at(instance_, rank);
    int64_t bytes = 0;
    for (const checkpoint::StoredWeight& w : whole.weights()) bytes += at.maps(w.entry, config_) ? w.bytes : 0;
    EXPECT_EQ(held[static_cast<size_t>(rank)].mapped, bytes) << "rank " << rank;
  }
}

std::string name_of(const ::testing::TestParamInfo<Shares>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Of, LayoutMemory,
    ::testing::Values(
        Shares{"One", "plain", ""},
        Shares{"Pp16", "deep", "pipeline = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]\n[instance.eager_bank]\n"},
        Shares{"Ep16", "wide", "attention = { dp = 16 }\nvocab = 4"}, Shares{"Dp16Shard8", "wide", "decode-dp16"},
        Shares{"Dp2Dcp8Ep16", "wide", "decode-dp2-dcp8"}, Shares{"Tp4", "plain", "attention = { tp = 4 }"},
        Shares{"Tp4Dcp2Ep2", "plain", "attention = { tp = 4, dcp = 2 }\nexperts = { ep = 2 }"},
        Shares{"OddTp6Dcp3", "odd", "attention = { tp = 6, dcp = 3 }\nexperts = { ep = 3 }\nvocab = 3"},
        Shares{"OddShard3", "odd", "attention = { dp = 3 }\nweight_shard = 3\nvocab = 3"},
        Shares{"Pp3Tp2", "deep", "pipeline = [5, 4, 9]\nattention = { tp = 2 }"},
        Shares{"Pp2Shard2", "deep", "pipeline = [1, 17]\nattention = { dp = 2 }\nweight_shard = 2\nvocab = 2"},
        Shares{"LinearShard", "linear", "attention = { dp = 2 }\nweight_shard = 2"},
        Shares{"TiedPp2", "tied", "pipeline = 2"}, Shares{"TiedDp2", "tied", "attention = { dp = 2 }\nvocab = 2"}),
    name_of);

}  // namespace
}  // namespace trireme::testing
