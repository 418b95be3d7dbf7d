// The endpoints: which path does what.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "serve/exchange.h"
#include "serve/generation.h"
#include "serve/requests.h"

namespace trireme::serve {

struct ApiOptions {
  std::string model_name;  // what clients call the model
  std::string api_key;     // empty: none is asked for
  SamplingDefaults defaults;
  int64_t max_choices = kMaxChoices;  // of one request: what the engine runs and lets wait
};

class Api : public Handler {
 public:
  // The context's members outlive this.
  Api(ApiOptions options, GenerationContext context);

  std::optional<HttpResponse> screen(const HttpRequest& request) override;
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse protocol_error(int status, const std::string& message) override;

 private:
  struct Route;
  static const Route* find_route(const std::string& path);

  // GET endpoints answer at once, POST endpoints on a worker.
  HttpResponse health() const;
  HttpResponse metrics() const;
  HttpResponse version() const;
  HttpResponse models(const std::string& path) const;
  HttpResponse get(const HttpRequest& request) const;
  void post(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void chat_completion(const std::string& body, const std::shared_ptr<Exchange>& exchange);
  void completion(const std::string& body, const std::shared_ptr<Exchange>& exchange);
  HttpResponse tokenize(const std::string& body) const;
  HttpResponse detokenize(const std::string& body) const;

  GenerationPlan plan(AnswerForm form, CommonRequest common) const;
  // Checks the prompts against the context and sets how many tokens may be generated. `field` names the prompt in
  // errors.
  void fit(GenerationPlan& plan, const char* field) const;
  void check_model(const std::optional<std::string>& model) const;
  int64_t max_context() const;
  bool authorized(const std::string& header) const;

  const ApiOptions options_;
  GenerationContext context_;
  const RequestLimits limits_;
  const int64_t started_;
};

}  // namespace trireme::serve
