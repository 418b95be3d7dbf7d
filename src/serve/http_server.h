// HTTP/1.1 over TCP: connections, their limits and time-outs. What requests mean is the handler's business.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "serve/exchange.h"

namespace trireme::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address or a name of this machine
  uint16_t port = 0;               // 0: any free one
  int threads = 2;
  int64_t max_connections = 1024;                    // more are answered 503
  uint32_t max_header_bytes = 16 * 1024;             // 431
  uint64_t max_body_bytes = uint64_t{8} << 20;       // 413
  size_t max_queued_bytes = size_t{4} << 20;         // of a stream that the client does not read; more end it
  std::chrono::milliseconds idle_timeout{75'000};    // between requests: closed
  std::chrono::milliseconds header_timeout{15'000};  // from a request's first byte to its headers' end: 408
  std::chrono::milliseconds body_timeout{60'000};    // for the whole body: 408
  std::chrono::milliseconds write_timeout{60'000};   // for 64 KiB to be accepted by the client: closed
};

class HttpServer {
 public:
  // Takes the address but does not listen yet. Throws BadInput if the host is unknown and Failure if the port is in use
  // or not allowed.
  explicit HttpServer(const HttpOptions& options);
  // Stops without grace.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // `handler` must live until stop(). Throws Failure if the port was taken in the meantime.
  void start(Handler& handler);
  uint16_t port() const;
  int64_t connections() const;

  // Takes no new connections or requests and closes those that are idle. Returns whether all ended within `grace`.
  bool drain(std::chrono::milliseconds grace);
  // Closes what is left, which abandons its exchanges, and joins the threads. Idempotent.
  void stop();

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace trireme::serve
