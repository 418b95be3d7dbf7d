// resolve(): everything that can be wrong between an instance and a model, found before anything starts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "checkpoint/catalogue.h"
#include "layout/chunks.h"
#include "layout/instance.h"

namespace trireme::layout {
namespace {

using checkpoint::ModelConfig;

constexpr int64_t kMaxRanks = 65536;  // of an instance; keeps every product below in range
constexpr int64_t kMaxTokens = int64_t{1} << 40;

// "1, 2, 4 or 8"; values that work are few, but a model may have many heads.
std::string one_of(const std::vector<int64_t>& values) {
  if (values.empty()) return "none";
  if (values.size() == 1) return fmt::format("{}", values[0]);
  const auto last = values.end() - 1;
  return fmt::format("{} or {}", fmt::join(values.begin(), last, ", "), *last);
}

template <typename Works>
std::vector<int64_t> divisors(int64_t number, const Works& works) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0 && works(d)) found.push_back(d);
  }
  return found;
}

class Resolver {
 public:
  Resolver(Instance instance, const ModelConfig& config) : instance_(std::move(instance)), config_(config) {
    ModelConfig without_experts = config_;  // their many entries divide whole
    without_experts.moe.experts = 0;
    entries_ = checkpoint::catalogue(without_experts);
    std::erase_if(entries_, [](const auto& entry) { return entry.elements() == 0; });  // their router
  }

  Instance run() {
    check_numbers();
    check_pipeline();
    check_attention();
    check_experts();
    check_vocab();
    check_hosts();
    check_weight_shard();
    check_shares();
    check_role();
    check_prefill();
    check_eager_bank();
    return std::move(instance_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    throw BadInput(fmt::format("instance \"{}\": {}", instance_.name, fmt::format(text, std::forward<Args>(args)...)));
  }

  void check_range(const char* setting, int64_t value, int64_t least, int64_t most) const {
    if (value < least || value > most) {
      refuse("{} = {} is out of range; {} to {} would work", setting, value, least, most);
    }
  }

  void check_numbers() const {
    if (instance_.name.empty()) throw BadInput("an instance's name is empty; name = \"p0\" would work");
    check_range("attention.dp", instance_.dp, 1, kMaxRanks);
    check_range("attention.tp", instance_.tp, 1, kMaxRanks);
    check_range("attention.dcp", instance_.dcp, 1, kMaxRanks);
    check_range("experts.ep", instance_.ep, 0, kMaxRanks);
    check_range("vocab", instance_.vocab, 0, kMaxRanks);
    check_range("weight_shard", instance_.weight_shard, 1, kMaxRanks);
    check_range("ranks_per_host", instance_.ranks_per_host, 0, kMaxRanks);
    check_range("prefill.chunk_tokens", instance_.chunk_tokens, 1, kMaxTokens);
    check_range("prefill.async_depth", instance_.async_depth, 0, kMaxRanks);
    if (instance_.row_bound) check_range("row_bound", *instance_.row_bound, 1, kMaxTokens);
    if (instance_.max_dispatch_tokens) {
      check_range("experts.max_dispatch_tokens", *instance_.max_dispatch_tokens, 1, kMaxTokens);
    }
  }

  void check_pipeline() {
    auto& pipeline = instance_.pipeline;
    const int64_t layers = config_.layers;
    const int64_t stages = pipeline.empty() ? std::max<int64_t>(instance_.pipeline_stages, 0) : instance_.stages();
    if (stages > layers) {
      refuse("pipeline has {} stages and the model {} layers; 1 to {} stages would work", stages, layers, layers);
    }
    if (pipeline.empty()) {
      check_range("pipeline", instance_.pipeline_stages, 0, layers);
      pipeline =
          stages <= 1 ? std::vector<int64_t>{layers} : default_partition(config_, stages, instance_.chunk_tokens);
    }
    const auto instead = [&] { return default_partition(config_, stages, instance_.chunk_tokens); };
    int64_t left = layers;
    for (size_t stage = 0; stage < pipeline.size(); ++stage) {
      if (pipeline[stage] < 1) {
        refuse("pipeline gives stage {} {} layers and every stage needs one; {} would work", stage, pipeline[stage],
               instead());
      }
      // The sum itself might not fit a number.
      if (pipeline[stage] > left) {
        refuse("pipeline = {} has more layers than the model's {}; {} would work", pipeline, layers, instead());
      }
      left -= pipeline[stage];
    }
    if (left != 0) {
      refuse("pipeline = {} has {} layers and the model {}; {} would work", pipeline, layers - left, layers, instead());
    }
    if (instance_.dp * instance_.tp > kMaxRanks || instance_.ranks() > kMaxRanks) {
      refuse(
          "attention.dp = {} and attention.tp = {} in {} stages are more than {} ranks; a smaller dp or tp would work",
          instance_.dp, instance_.tp, instance_.stages(), kMaxRanks);
    }
  }

  void check_attention() const {
    const int64_t tp = instance_.tp;
    const auto is_any = [&](checkpoint::LayerKind kind) {
      return std::find(config_.kinds.begin(), config_.kinds.end(), kind) != config_.kinds.end();
    };
    const int64_t kda = is_any(checkpoint::LayerKind::kda) ? config_.kda.heads : 0;
    const int64_t mla = is_any(checkpoint::LayerKind::mla) ? config_.mla.heads : 0;
    const auto divides = [&](int64_t d) { return kda % d == 0 && mla % d == 0; };
    if (!divides(tp)) {
      const std::string heads = kda == mla || mla == 0 ? fmt::format("{} heads", kda)
                                : kda == 0             ? fmt::format("{} heads", mla)
                                                       : fmt::format("{} KDA and {} MLA heads", kda, mla);
      refuse("attention.tp = {} does not divide the model's {}; {} would work", tp, heads,
             one_of(divisors(std::max(kda, mla), divides)));
    }
    if (tp % instance_.dcp != 0) {
      refuse("attention.dcp = {} does not divide attention.tp = {}; {} would work", instance_.dcp, tp,
             one_of(divisors(tp, [](int64_t) { return true; })));
    }
  }

  void check_experts() {
    const int64_t ranks = instance_.ranks_per_stage();
    const bool all = instance_.ep == 0;
    if (all) instance_.ep = ranks;
    const int64_t ep = instance_.ep;
    const std::string given = all ? " (all ranks of a stage)" : "";
    const auto works = [&](int64_t d) { return config_.moe.experts % d == 0; };
    if (ranks % ep != 0) {
      refuse("experts.ep = {} does not divide the {} ranks of a stage; {} would work", ep, ranks,
             one_of(divisors(ranks, works)));
    }
    if (!works(ep)) {
      refuse("experts.ep = {}{} does not divide the model's {} experts; {} would work", ep, given, config_.moe.experts,
             one_of(divisors(ranks, works)));
    }
    if (instance_.row_bound && instance_.max_dispatch_tokens) {
      const int64_t rows = *instance_.row_bound;  // of a rank's own: tp has divided the batch already
      if (*instance_.max_dispatch_tokens < rows) {
        refuse(
            "experts.max_dispatch_tokens = {} is less than the {} rows that row_bound = {} lets a rank send; {} would "
            "work",
            *instance_.max_dispatch_tokens, rows, rows, rows);
      }
    }
  }

  void check_vocab() {
    const int64_t ranks = instance_.ranks_per_stage();
    const bool open = instance_.vocab == 0;
    if (open) instance_.vocab = instance_.tp;
    if (ranks % instance_.vocab != 0) {
      refuse("vocab = {} does not divide the {} ranks of a stage; {} would work", instance_.vocab, ranks,
             one_of(divisors(ranks, [](int64_t) { return true; })));
    }
    if (instance_.vocab > config_.vocab) {
      refuse("vocab = {} ranks are more than the model's {} rows; {} would work", instance_.vocab, config_.vocab,
             one_of(divisors(ranks, [&](int64_t d) { return d <= config_.vocab; })));
    }
  }

  // Whether runs of `size` ranks never lie on two hosts, with `ranks` ranks a stage (a multiple of size).
  bool is_inside_host(int64_t size, int64_t ranks) const {
    const int64_t host = instance_.ranks_per_host;
    if (host == 0) return true;
    for (int64_t first = 0; first < ranks * instance_.stages(); first += size) {
      if (first / host != (first + size - 1) / host) return false;
    }
    return true;
  }

  void check_hosts() const {
    const int64_t ranks = instance_.ranks_per_stage();
    const int64_t host = instance_.ranks_per_host;
    if (instance_.dcp > 1 && !is_inside_host(instance_.tp, ranks)) {
      const auto works = [&](int64_t d) { return d % instance_.dcp == 0 && is_inside_host(d, instance_.dp * d); };
      const auto tps = divisors(instance_.tp, works);
      refuse(
          "attention.tp = {} with attention.dcp = {} needs its group on one host and ranks_per_host = {} cuts it; {} "
          "would work",
          instance_.tp, instance_.dcp, host,
          tps.empty() ? std::string("attention.dcp = 1") : "attention.tp = " + one_of(tps));
    }
    const auto check = [&](const char* setting, int64_t size) {
      if (is_inside_host(size, ranks)) return;
      refuse("{} = {} needs its group on one host and ranks_per_host = {} cuts it; {} = {} would work", setting, size,
             host, setting, one_of(divisors(ranks, [&](int64_t d) { return is_inside_host(d, ranks); })));
    };
    check("vocab", instance_.vocab);
    if (ranks % instance_.weight_shard == 0) check("weight_shard", instance_.weight_shard);
  }

  void check_weight_shard() const {
    const int64_t ranks = instance_.ranks_per_stage();
    if (ranks % instance_.weight_shard != 0) {
      refuse("weight_shard = {} does not divide the {} ranks of a stage; {} would work", instance_.weight_shard, ranks,
             one_of(divisors(ranks, [&](int64_t d) { return is_inside_host(d, ranks); })));
    }
    if (instance_.weight_shard == 1) return;
    RankShare share;
    share.heads.count = instance_.tp;
    share.weights.count = instance_.weight_shard;
    const bool any = std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) { return is_sharded(e, share); });
    if (!any) {
      refuse(
          "weight_shard = {} has nothing to share: behind layer 0 the model has no latent projection and no shared "
          "expert, and attention.tp = {} {}; weight_shard = 1 would work",
          instance_.weight_shard, instance_.tp, instance_.tp > 1 ? "already divides its heads" : "has no layer left");
    }
  }

  // Shares are of ceil(rows / ranks), so the last rank may be left with nothing. The tensor of which it would have
  // none, if the three groups had these sizes.
  const checkpoint::CatalogueEntry* empty_share(int64_t tp, int64_t vocab, int64_t weights) const {
    RankShare share;
    share.heads = share.query_heads = {tp - 1, tp};
    share.vocab = {vocab - 1, vocab};
    share.weights = {weights - 1, weights};
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const auto& entry) { return !slice_of(entry, config_, share).has_value(); });
    return found == entries_.end() ? nullptr : &*found;
  }

  void check_shares() const {
    const int64_t tp = instance_.tp;
    const int64_t vocab = instance_.vocab;
    const int64_t weights = instance_.weight_shard;
    const auto check = [&](const char* setting, int64_t size, const checkpoint::CatalogueEntry* empty,
                           const auto& works) {
      if (empty == nullptr) return;
      refuse("{} = {} leaves a rank without a share of {} {}; {} = {} would work", setting, size, empty->name,
             fmt::format("[{}]", fmt::join(empty->shape, ", ")), setting, one_of(divisors(size, works)));
    };
    check("attention.tp", tp, empty_share(tp, 1, 1), [&](int64_t d) { return empty_share(d, 1, 1) == nullptr; });
    check("vocab", vocab, empty_share(tp, vocab, 1), [&](int64_t d) { return empty_share(tp, d, 1) == nullptr; });
    check("weight_shard", weights, empty_share(tp, 1, weights),
          [&](int64_t d) { return empty_share(tp, 1, d) == nullptr; });
  }

  void check_role() const {
    if (instance_.role == Role::prefill && instance_.dcp > 1) {
      refuse("attention.dcp = {} is for decoding and role = \"prefill\"; attention.dcp = 1 would work", instance_.dcp);
    }
    if (instance_.role == Role::decode && instance_.stages() > 1) {
      refuse("pipeline = {} has {} stages and role = \"decode\" runs in one; pipeline = [{}] would work",
             instance_.pipeline, instance_.stages(), config_.layers);
    }
  }

  void check_prefill() const {
    if (instance_.dynamic_chunking && instance_.stages() == 1) {
      refuse(
          "prefill.dynamic_chunking = true has no effect on one stage; false, or a pipeline of 2 stages, would work");
    }
    if (instance_.async_depth > 0 && instance_.stages() == 1) {
      refuse("prefill.async_depth = {} has no effect on one stage; 0, or a pipeline of 2 stages, would work",
             instance_.async_depth);
    }
    for (const int64_t length : instance_.warmup) {
      check_range("prefill.warmup", length, 1, config_.max_positions > 0 ? config_.max_positions : kMaxTokens);
    }
  }

  void check_eager_bank() {
    EagerBank& bank = instance_.eager_bank;
    if (!bank.enabled) {
      if (!bank.stages.empty()) {
        refuse("eager_bank.stages = {} has no effect while the eager bank is off; [] would work", bank.stages);
      }
      return;
    }
    if (instance_.stages() == 1) refuse("eager_bank has no effect on one stage; leaving it out would work");
    if (!config_.residual_block) {
      refuse("eager_bank has no effect: the model has no residual bank; leaving it out would work");
    }
    // Stage 0 inherits nothing, the last stage sends nothing; a stage between them passes the rows of layer 0 on at
    // least.
    std::vector<int64_t> able(static_cast<size_t>(instance_.stages() - 2));
    std::iota(able.begin(), able.end(), int64_t{1});
    if (able.empty()) {
      refuse("eager_bank has no effect in a pipeline of 2 stages: neither passes rows on; leaving it out would work");
    }
    for (size_t i = 0; i < bank.stages.size(); ++i) {
      const int64_t stage = bank.stages[i];
      if (std::find(able.begin(), able.end(), stage) == able.end()) {
        refuse("eager_bank.stages holds {}, {}; {} would work", stage,
               stage < 0 || stage >= instance_.stages()
                   ? fmt::format("which is no stage of a pipeline of {}", instance_.stages())
               : stage == 0 ? std::string("which inherits no rows")
                            : std::string("the last stage, which sends none"),
               one_of(able));
      }
      if (std::find(bank.stages.begin(), bank.stages.begin() + static_cast<std::ptrdiff_t>(i), stage) !=
          bank.stages.begin() + static_cast<std::ptrdiff_t>(i)) {
        refuse("eager_bank.stages = {} holds {} twice; once would work", bank.stages, stage);
      }
    }
    if (bank.stages.empty()) bank.stages = able;
  }

  Instance instance_;
  const ModelConfig& config_;
  std::vector<checkpoint::CatalogueEntry> entries_;  // but for experts
};

}  // namespace

Instance resolve(Instance instance, const checkpoint::ModelConfig& config) {
  return Resolver(std::move(instance), config).run();
}

}  // namespace trireme::layout
