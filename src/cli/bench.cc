#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "cli/engine_flags.h"
#include "cli/machine_rates.h"
#include "engine/pools.h"
#include "ledger/forms.h"
#include "ledger/ledger.h"
#include "model/model.h"
#include "ops/sampling.h"
#include "ops/select.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kChunk = 512;  // prompt tokens a forward pass, as the engine's default
constexpr int kPrefills = 3;     // timed; the middle one counts
constexpr uint64_t kSeed = 1;

struct LatencyArgs {
  std::filesystem::path model;
  int64_t prompt = 512;
  int64_t generate = 64;
  std::vector<int64_t> batches{1, 8};
  int threads = 0;
  std::string isa = "auto";
  ops::Precision precision = ops::Precision::bf16;
  bool json = false;
};

// Operations of one token through all layers, two a multiply-add: every matrix once, experts by top_k. The head apart,
// since a prefill needs it for one row only. Attention over the context and the KDA recurrence are added by
// `state_flops`.
struct TokenFlops {
  double layers = 0;
  double head = 0;
};

TokenFlops token_flops(const checkpoint::ModelConfig& config) {
  TokenFlops flops;
  for (const checkpoint::CatalogueEntry& e : checkpoint::catalogue(config)) {
    const ledger::Form form = ledger::form_of(e);
    if (form != ledger::Form::packed && form != ledger::Form::absorbed) continue;
    double ops = 2 * static_cast<double>(e.shape[0]) * static_cast<double>(e.shape[1]);
    if (e.group == checkpoint::Group::experts) {
      ops *= static_cast<double>(config.moe.top_k) / static_cast<double>(config.moe.experts);
    }
    (e.group == checkpoint::Group::head ? flops.head : flops.layers) += ops;
  }
  if (config.tied_embeddings) flops.head = 2 * static_cast<double>(config.hidden) * static_cast<double>(config.vocab);
  return flops;
}

// Of one token that sees `context` tokens: per KDA head decay, two products with the state and a rank-1 update (7
// dim^2), per MLA head scores and sums over the latents.
double state_flops(const checkpoint::ModelConfig& config, double context) {
  double flops = 0;
  for (const checkpoint::LayerKind kind : config.kinds) {
    if (kind == checkpoint::LayerKind::kda) {
      flops += 7 * static_cast<double>(config.kda.heads * config.kda.dim * config.kda.dim);
    } else {
      flops += 2 * static_cast<double>(config.mla.heads * (config.mla.cache_width() + config.mla.kv_lora)) * context;
    }
  }
  return flops;
}

// Bytes that one decode step must move: each weight line once (of the experts those that `batch` tokens choose, if all
// are equally likely; of the embedding nothing worth counting), each request's KDA state in and out, and its latents.
double decode_bytes(const ledger::Plan& plan, const checkpoint::ModelConfig& config, ops::Precision precision,
                    int64_t batch, double context) {
  double bytes = 0;
  for (const ledger::Line& line : plan.lines) {
    if (!line.name.starts_with("weights.") || line.name == "weights.embedding") continue;
    double share = 1;
    if (line.name == "weights.experts") {
      const double missed = 1 - static_cast<double>(config.moe.top_k) / static_cast<double>(config.moe.experts);
      share = 1 - std::pow(missed, static_cast<double>(batch));
    }
    bytes += share * static_cast<double>(line.bytes);
  }
  const double latents = static_cast<double>(ledger::page_bytes(config, precision)) / ops::kPageTokens * context;
  return bytes + static_cast<double>(batch) * (2 * static_cast<double>(ledger::kda_slot_bytes(config)) + latents);
}

int64_t peak_rss_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

void check_memory(const ledger::Plan& plan) {
  const std::optional<int64_t> available = available_memory();
  if (!available || plan.total() <= *available) return;
  throw Failure(
      fmt::format("the memory plan needs {} bytes and {} are available; lower --batch, --prompt or --generate",
                  plan.total(), *available));
}

// The model with its pools, driven without the engine so that nothing but the forward pass is timed.
class Bench {
 public:
  explicit Bench(const LatencyArgs& args)
      : threads_(thread_count(args.threads)), ops_(ops::make_ops(args.isa, args.precision, threads_)) {
    const int64_t most = *std::max_element(args.batches.begin(), args.batches.end());
    const int64_t tokens = args.prompt + args.generate + 1;
    const ledger::PoolSizes sizes{most * cache::pages_for(tokens), most};
    load_seconds_ = seconds([&] {
      const auto checkpoint = checkpoint::Checkpoint::open(args.model);
      if (tokens > checkpoint.config().max_positions) {
        throw BadInput(fmt::format("--prompt {} and --generate {} need {} positions; the model has {}", args.prompt,
                                   args.generate, tokens, checkpoint.config().max_positions));
      }
      load_bytes_ = checkpoint.bytes_mapped();
      account_ = std::make_unique<ledger::Account>(ledger::plan_memory(checkpoint, *ops_, sizes));
      check_memory(account_->plan());
      model_ = std::make_unique<model::Model>(checkpoint, *ops_, *account_);
    });
    pools_.emplace(model_->config(), ops_->precision(), sizes, *account_);
    pages_each_ = cache::pages_for(tokens);
    positions_.resize(static_cast<size_t>(most), 0);
    newest_.resize(static_cast<size_t>(most), 0);
  }

  // Runs a fresh prompt of random tokens in request `r`'s place; leaves its first generated token.
  void prefill(int64_t r, int64_t prompt) {
    positions_[static_cast<size_t>(r)] = 0;
    for (int64_t done = 0; done < prompt;) {
      const int64_t rows = std::min(kChunk, prompt - done);
      model::Batch batch;
      for (int64_t i = 0; i < rows; ++i) batch.tokens.push_back(random_token(r, done + i));
      batch.segments.push_back(segment(r, rows));
      done += rows;
      if (done == prompt) batch.logit_rows.push_back(rows - 1);
      run(batch);
    }
  }

  // One greedy token for each of the first `count` requests.
  void decode(int64_t count) {
    model::Batch batch;
    for (int64_t r = 0; r < count; ++r) {
      batch.tokens.push_back(newest_[static_cast<size_t>(r)]);
      batch.segments.push_back(segment(r, 1));
      batch.logit_rows.push_back(r);
    }
    run(batch);
  }

  ThreadPool& threads() { return threads_; }
  const ops::Ops& ops() const { return *ops_; }
  const model::Model& model() const { return *model_; }
  const ledger::Plan& plan() const { return account_->plan(); }
  double load_seconds() const { return load_seconds_; }
  int64_t load_bytes() const { return load_bytes_; }

 private:
  int32_t random_token(int64_t r, int64_t position) const {
    const double u = uniform_at(kSeed, static_cast<uint64_t>(position), static_cast<uint64_t>(r));
    return static_cast<int32_t>(u * static_cast<double>(model_->config().vocab));
  }

  model::Segment segment(int64_t r, int64_t rows) {
    model::Segment s;
    s.rows = rows;
    s.position = positions_[static_cast<size_t>(r)];
    s.slot = static_cast<int32_t>(r);
    s.pages.reserve(static_cast<size_t>(pages_each_));
    for (int64_t p = 0; p < pages_each_; ++p) s.pages.push_back(static_cast<int32_t>(r * pages_each_ + p));
    positions_[static_cast<size_t>(r)] += rows;
    return s;
  }

  void run(const model::Batch& batch) {
    const model::ForwardOutput out = model_->forward(batch, pools_->views());
    size_t segment = 0;
    int64_t end = 0;
    for (int64_t i = 0; i < out.logits.rows(); ++i) {
      const int64_t row = batch.logit_rows[static_cast<size_t>(i)];
      while (end + batch.segments[segment].rows <= row) end += batch.segments[segment++].rows;
      const std::optional<int32_t> best =
          ops::greedy({out.logits.view().row(i), static_cast<size_t>(out.logits.cols())});
      if (!best) throw Failure("the model gave logits that are no numbers; its weights are damaged");
      newest_[static_cast<size_t>(batch.segments[segment].slot)] = *best;
    }
  }

  ThreadPool threads_;
  std::unique_ptr<ops::Ops> ops_;
  std::unique_ptr<ledger::Account> account_;
  std::unique_ptr<model::Model> model_;
  std::optional<engine::Pools> pools_;
  double load_seconds_ = 0;
  int64_t load_bytes_ = 0;
  int64_t pages_each_ = 0;
  std::vector<int64_t> positions_;
  std::vector<int32_t> newest_;
};

Json measure_prefill(Bench& bench, const LatencyArgs& args) {
  bench.prefill(0, args.prompt);  // warms caches, pages and the thread pool
  std::vector<double> times;
  times.reserve(kPrefills);
  for (int i = 0; i < kPrefills; ++i) times.push_back(seconds([&] { bench.prefill(0, args.prompt); }));
  std::sort(times.begin(), times.end());
  const double s = times[times.size() / 2];
  const auto tokens = static_cast<double>(args.prompt);
  const TokenFlops flops = token_flops(bench.model().config());
  const double total = tokens * (flops.layers + state_flops(bench.model().config(), tokens / 2)) + flops.head;
  return {{"tokens", args.prompt}, {"tokens_per_s", tokens / s}, {"ttft_s", s}, {"flops_per_s", total / s}};
}

Json measure_decode(Bench& bench, const LatencyArgs& args, int64_t batch) {
  for (int64_t r = 0; r < batch; ++r) bench.prefill(r, args.prompt);
  bench.decode(batch);
  const double s = seconds([&] {
                     for (int64_t i = 1; i < args.generate; ++i) bench.decode(batch);
                   }) /
                   static_cast<double>(args.generate - 1);
  const checkpoint::ModelConfig& config = bench.model().config();
  const double context = static_cast<double>(args.prompt) + static_cast<double>(args.generate) / 2;
  const TokenFlops flops = token_flops(config);
  const double bytes = decode_bytes(bench.plan(), config, bench.ops().precision(), batch, context);
  return {{"batch", batch},
          {"tokens_per_s", static_cast<double>(batch) / s},
          {"step_s", s},
          {"bytes_per_step", bytes},
          {"bytes_per_s", bytes / s},
          {"flops_per_s", static_cast<double>(batch) * (flops.layers + flops.head + state_flops(config, context)) / s}};
}

Json measure(const LatencyArgs& args) {
  Bench bench(args);
  Json report;
  report["model"] = args.model.string();
  report["through"] = "model and pools, without the engine";
  report["isa"] = bench.ops().name();
  report["precision"] = precision_name(args.precision);
  report["threads"] = bench.threads().threads();
  report["load"] = {{"seconds", bench.load_seconds()},
                    {"bytes", bench.load_bytes()},
                    {"bytes_per_s", static_cast<double>(bench.load_bytes()) / bench.load_seconds()}};
  report["prefill"] = measure_prefill(bench, args);
  report["decode"] = Json::array();
  for (const int64_t batch : args.batches) report["decode"].push_back(measure_decode(bench, args, batch));
  report["memory"] = {{"ledger_bytes", bench.plan().total()}, {"peak_rss_bytes", peak_rss_bytes()}};
  // The yardsticks come last, since the block that they read would count in the peak.
  const double read_rate = measure_read_rate(bench.threads());
  const std::optional<double> peak = measure_peak_flops(bench.threads(), bench.ops().name());
  report["machine"] = {{"read_bytes_per_s", read_rate}, {"peak_flops_per_s", nullptr}};
  if (peak) report["machine"]["peak_flops_per_s"] = *peak;
  const auto shares = [&](Json& part) {
    if (part.contains("bytes_per_s")) part["memory_share"] = part["bytes_per_s"].get<double>() / read_rate;
    part["arithmetic_share"] = nullptr;
    if (peak) part["arithmetic_share"] = part["flops_per_s"].get<double>() / *peak;
  };
  shares(report["prefill"]);
  for (Json& part : report["decode"]) shares(part);
  return report;
}

std::string percent(const Json& share) {
  return share.is_null() ? "?" : fmt::format("{:.1f} %", 100 * share.get<double>());
}

void print_report(const Json& r) {
  const auto number = [](const Json& j) { return j.get<double>(); };
  fmt::print("{} | {} {} | {} threads | {}\n", r["model"].get<std::string>(), r["isa"].get<std::string>(),
             r["precision"].get<std::string>(), r["threads"].get<int>(), r["through"].get<std::string>());
  fmt::print("load      {:9.2f} s       {:.1f} MB at {:.0f} MB/s\n", number(r["load"]["seconds"]),
             number(r["load"]["bytes"]) / 1e6, number(r["load"]["bytes_per_s"]) / 1e6);
  const Json& p = r["prefill"];
  fmt::print("prefill   {:9.1f} tokens/s  {} tokens, first token after {:.3f} s, {:.1f} Gflop/s, {} of peak\n",
             number(p["tokens_per_s"]), p["tokens"].get<int64_t>(), number(p["ttft_s"]), number(p["flops_per_s"]) / 1e9,
             percent(p["arithmetic_share"]));
  for (const Json& d : r["decode"]) {
    fmt::print(
        "decode    {:9.1f} tokens/s  batch {}, {:.2f} ms a step, {:.1f} MB a step at {:.1f} GB/s, {} of the read rate, "
        "{} of peak\n",
        number(d["tokens_per_s"]), d["batch"].get<int64_t>(), number(d["step_s"]) * 1e3,
        number(d["bytes_per_step"]) / 1e6, number(d["bytes_per_s"]) / 1e9, percent(d["memory_share"]),
        percent(d["arithmetic_share"]));
  }
  const Json& m = r["machine"];
  fmt::print("machine   {:9.1f} GB/s read, {} Gflop/s\n", number(m["read_bytes_per_s"]) / 1e9,
             m["peak_flops_per_s"].is_null() ? "?" : fmt::format("{:.1f}", number(m["peak_flops_per_s"]) / 1e9));
  fmt::print("memory    {:9.1f} MB peak RSS, {:.1f} MB in the ledger\n", number(r["memory"]["peak_rss_bytes"]) / 1e6,
             number(r["memory"]["ledger_bytes"]) / 1e6);
}

// "1,8". (CLI11's own lists pass over an empty item.)
std::vector<int64_t> batch_sizes(const std::string& list) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(list.data() + begin, list.data() + end, size);
    if (error != std::errc() || stop != list.data() + end || size < 1 || size > 65536) {
      throw BadInput(fmt::format("--batch {}: \"{}\" is no batch size; it must be a number from 1 to 65536", list,
                                 list.substr(begin, end - begin)));
    }
    sizes.push_back(size);
    begin = end + 1;
  }
  return sizes;
}

void run(LatencyArgs& args) {
  resolve_model(args.model);
  const Json report = measure(args);
  if (args.json) {
    fmt::print("{}\n", report.dump(2));
  } else {
    print_report(report);
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measurements");
  bench->require_subcommand(1);
  auto args = std::make_shared<LatencyArgs>();
  CLI::App* sub =
      bench->add_subcommand("latency", "Load, prefill and decode of a model, beside what the machine can do");
  add_compute_flags(*sub, args->model, args->precision, args->isa, args->threads);
  sub->add_option("--prompt", args->prompt, "Prompt tokens, random and seeded (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--generate", args->generate, "Generated tokens a request (default 64)")
      ->check(CLI::Range(2, 1 << 20));
  sub->add_option_function<std::string>(
      "--batch", [args](const std::string& list) { args->batches = batch_sizes(list); },
      "Batch sizes of decode, separated by commas (default 1,8)");
  sub->add_flag("--json", args->json, "Print one JSON object");
  sub->callback([args] { run(*args); });
}

}  // namespace trireme::cli
