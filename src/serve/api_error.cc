#include "serve/api_error.h"

namespace trireme::serve {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

Json error_json(const ApiError& error) {
  const Json param = error.param.empty() ? Json(nullptr) : Json(error.param);
  const Json code = error.code.empty() ? Json(nullptr) : Json(error.code);
  const char* type = error_type(error.status);
  Json body;
  body["error"] = {{"message", error.what()}, {"type", type}, {"param", param}, {"code", code}};
  body["object"] = "error";
  body["message"] = error.what();
  body["type"] = type;
  body["param"] = param;
  body["code"] = error.status;
  return body;
}

}  // namespace trireme::serve
