// Errors as the API answers them, in OpenAI's form and in the flat form of other servers, merged into one body.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace trireme::serve {

using Json = nlohmann::ordered_json;

// What a client is told. `param` names the field at fault (empty: none), `code` is a short machine-readable word
// (empty: none).
class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, const std::string& message, std::string field = "", std::string word = "")
      : std::runtime_error(message), status(http_status), param(std::move(field)), code(std::move(word)) {}

  int status;
  std::string param;
  std::string code;
};

// {"error": {message, type, param, code}, "object": "error", message, type, param, code: status}
Json error_json(const ApiError& error);

}  // namespace trireme::serve
