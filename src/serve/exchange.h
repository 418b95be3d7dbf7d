// One request and its answer, between the HTTP connection and the application. Nothing here knows sockets.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::serve {

struct HttpRequest {
  std::string method;
  std::string path;           // without the query
  std::string authorization;  // the header's value; empty if absent
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
};

// Thread-safe. The application answers either with send() or with begin_stream(), any number of write(), finish();
// calls after the end or after the client left do nothing. The connection takes what is there and sends it at the
// client's pace. More than `max_queued` bytes waiting mean that the client does not read: the exchange is abandoned.
class Exchange {
 public:
  // `wake` tells the connection to take(); called without a lock held, from any thread.
  Exchange(std::function<void()> wake, size_t max_queued);

  void send(HttpResponse response);
  // 200 with content type text/event-stream.
  void begin_stream();
  void write(std::string_view data);
  void finish();
  // `action` runs once if the client leaves, or is dropped, before the answer's end; at once if that has happened.
  void on_abandoned(std::function<void()> action);
  bool abandoned() const;

  // ---- the connection's side
  struct Pending {
    std::optional<HttpResponse> response;
    bool streaming = false;
    std::string data;       // of the stream
    bool finished = false;  // nothing follows
    bool abandoned = false;
  };
  Pending take();
  void abandon();

 private:
  const std::function<void()> wake_;
  const size_t max_queued_;
  mutable std::mutex mutex_;
  std::optional<HttpResponse> response_;
  std::string data_;
  bool streaming_ = false;
  bool finished_ = false;
  bool abandoned_ = false;
  std::function<void()> on_abandoned_;
};

// The application. Both functions are called on I/O threads and must not block.
class Handler {
 public:
  virtual ~Handler() = default;
  // Looks at a request whose body was not read yet (`request.body` is empty); an answer here means that the body is
  // never read.
  virtual std::optional<HttpResponse> screen(const HttpRequest& request) = 0;
  virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // The answer to a request that is no proper HTTP or hits a limit.
  virtual HttpResponse protocol_error(int status, const std::string& message) = 0;
};

}  // namespace trireme::serve
