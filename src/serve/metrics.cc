#include "serve/metrics.h"

#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <sstream>
#include <vector>

namespace trireme::serve {
namespace {

using prometheus::Histogram;
using Bounds = Histogram::BucketBoundaries;

const Bounds kFirstTokenBounds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
const Bounds kTokenGapBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600};
const Bounds kRequestBounds = {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 300, 480, 600};
const Bounds kTokenCountBounds = {1, 10, 100, 1000, 10'000, 100'000, 1'000'000};

prometheus::ClientMetric sample(const std::string& model, std::vector<prometheus::ClientMetric::Label> labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = {{"model_name", model}};
  for (auto& label : labels) metric.label.push_back(std::move(label));
  return metric;
}

class Page {
 public:
  Page(std::vector<prometheus::MetricFamily>& families, const std::string& model)
      : families_(families), model_(model) {}
  void gauge(const std::string& name, const std::string& help, double value) {
    prometheus::ClientMetric metric = sample(model_);
    metric.gauge.value = value;
    families_.push_back({name, help, prometheus::MetricType::Gauge, {metric}});
  }
  void counter(const std::string& name, const std::string& help, int64_t value) {
    prometheus::ClientMetric metric = sample(model_);
    metric.counter.value = static_cast<double>(value);
    families_.push_back({name, help, prometheus::MetricType::Counter, {metric}});
  }
  // A pool's free and used parts.
  void pool(const std::string& name, const std::string& help, int64_t free, int64_t total) {
    prometheus::MetricFamily family{name, help, prometheus::MetricType::Gauge, {}};
    for (const auto& [state, value] : {std::pair{"free", free}, std::pair{"used", total - free}}) {
      family.metric.push_back(sample(model_, {{"state", state}}));
      family.metric.back().gauge.value = static_cast<double>(value);
    }
    families_.push_back(std::move(family));
  }

 private:
  std::vector<prometheus::MetricFamily>& families_;
  const std::string& model_;
};

}  // namespace

struct Metrics::State {
  // The same observations under both naming schemes.
  struct Pair {
    Pair(prometheus::Registry& registry, const std::string& model, const std::string& name, const std::string& help,
         const Bounds& bounds)
        : both{&histogram(registry, model, "vllm:" + name, help, bounds),
               &histogram(registry, model, "sglang:" + name, help, bounds)} {}
    static Histogram& histogram(prometheus::Registry& registry, const std::string& model, const std::string& name,
                                const std::string& help, const Bounds& bounds) {
      return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({{"model_name", model}}, bounds);
    }
    void observe(double value) {
      for (Histogram* histogram : both) histogram->Observe(value);
    }
    std::array<Histogram*, 2> both;
  };

  explicit State(const std::string& name)
      : model(name),
        first_token(registry, model, "time_to_first_token_seconds", "From arrival to the first token",
                    kFirstTokenBounds),
        token_gap(registry, model, "inter_token_latency_seconds", "Between tokens of one answer", kTokenGapBounds),
        request(registry, model, "e2e_request_latency_seconds", "From arrival to the last token", kRequestBounds),
        prompt_tokens(Pair::histogram(registry, model, "vllm:request_prompt_tokens", "Prompt tokens of a request",
                                      kTokenCountBounds)),
        generated_tokens(Pair::histogram(registry, model, "vllm:request_generation_tokens",
                                         "Generated tokens of a request", kTokenCountBounds)) {
    auto& family = prometheus::BuildCounter()
                       .Name("vllm:request_success_total")
                       .Help("Requests that ended, by reason")
                       .Register(registry);
    constexpr std::array kNames = {"stop", "length", "abort", "error"};
    for (size_t i = 0; i < kNames.size(); ++i)
      endings[i] = &family.Add({{"model_name", model}, {"finished_reason", kNames[i]}});
  }

  const std::string model;
  prometheus::Registry registry;
  Pair first_token;
  Pair token_gap;
  Pair request;
  Histogram& prompt_tokens;
  Histogram& generated_tokens;
  std::array<prometheus::Counter*, 4> endings{};
};

Metrics::Metrics(const std::string& model_name) : state_(std::make_unique<State>(model_name)) {}
Metrics::~Metrics() = default;

void Metrics::first_token(double seconds_since_arrival) { state_->first_token.observe(seconds_since_arrival); }

void Metrics::more_tokens(double seconds, int64_t tokens) {
  for (int64_t i = 0; i < tokens; ++i) state_->token_gap.observe(seconds / static_cast<double>(tokens));
}

void Metrics::ended(Ending ending, double seconds_since_arrival, int64_t prompt_tokens, int64_t generated_tokens) {
  state_->endings.at(static_cast<size_t>(ending))->Increment();
  state_->request.observe(seconds_since_arrival);
  state_->prompt_tokens.Observe(static_cast<double>(prompt_tokens));
  state_->generated_tokens.Observe(static_cast<double>(generated_tokens));
}

std::string Metrics::render(const engine::EngineStats& stats) const {
  std::vector<prometheus::MetricFamily> families;
  Page page(families, state_->model);
  const auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  const int64_t pages_used = stats.pages_total - stats.pages_free;
  const int64_t slots_used = stats.slots_total - stats.slots_free;
  const auto running = static_cast<double>(stats.running);
  const auto waiting = static_cast<double>(stats.waiting);
  page.gauge("vllm:num_requests_running", "Requests that hold a state slot", running);
  page.gauge("vllm:num_requests_waiting", "Requests in the queue", waiting);
  page.gauge("vllm:kv_cache_usage_perc", "Share of the cache pages in use, 0 to 1",
             share(pages_used, stats.pages_total));
  page.counter("vllm:num_preemptions_total", "Requests put back into the queue for want of pages", stats.retractions);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of the requests taken", stats.prompt_tokens);
  page.counter("vllm:generation_tokens_total", "Tokens generated", stats.generated_tokens);
  page.gauge("sglang:num_running_reqs", "Requests that hold a state slot", running);
  page.gauge("sglang:num_queue_reqs", "Requests in the queue", waiting);
  page.gauge("sglang:num_used_tokens", "Tokens of cache pages in use",
             static_cast<double>(pages_used * stats.page_tokens));
  page.gauge("sglang:max_total_num_tokens", "Tokens that all cache pages hold",
             static_cast<double>(stats.pages_total * stats.page_tokens));
  page.gauge("sglang:token_usage", "Share of the cache pages in use, 0 to 1", share(pages_used, stats.pages_total));
  page.gauge("sglang:mamba_usage", "Share of the recurrent state slots in use, 0 to 1",
             share(slots_used, stats.slots_total));
  page.gauge("sglang:spec_accept_length", "Mean tokens a draft round; 0 without a draft",
             share(stats.draft_emitted, stats.draft_rounds));
  page.counter("sglang:prompt_tokens_total", "Prompt tokens of the requests taken", stats.prompt_tokens);
  page.counter("sglang:generation_tokens_total", "Tokens generated", stats.generated_tokens);
  page.counter("sglang:num_requests_total", "Requests taken by the engine", stats.requests);
  page.counter("sglang:num_aborted_requests_total", "Requests that were cancelled",
               static_cast<int64_t>(state_->endings[static_cast<size_t>(Ending::abort)]->Value()));
  page.counter("sglang:num_retracted_requests_total", "Requests put back into the queue for want of pages",
               stats.retractions);
  page.counter("k3_steps_total", "Steps of the engine", stats.steps);
  page.counter("k3_failed_requests_total", "Requests that ended with an error", stats.failed);
  page.pool("k3_mla_pages", "Pages of the latent cache", stats.pages_free, stats.pages_total);
  page.pool("k3_kda_slots", "Slots of recurrent state", stats.slots_free, stats.slots_total);
  for (auto& family : state_->registry.Collect()) families.push_back(std::move(family));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace trireme::serve
