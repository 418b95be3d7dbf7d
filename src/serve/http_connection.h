// One TCP connection: reads requests, hands them to the handler and sends the answers. Only the HTTP server includes
// this.
#pragma once

// clang-format off
#include <utility>  // before Boost 1.74's awaitable.hpp, which forgets it
// clang-format on

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http_server.h"

namespace trireme::serve {

// What all connections of a server share; outlives them.
struct ConnectionContext {
  const HttpOptions options;
  Handler* handler = nullptr;  // set before the first connection
  std::atomic<bool> draining{false};
};

// Everything runs on the socket's strand, except the wake-up of an exchange, which posts to it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ConnectionContext& context);

  // Serves requests until either side closes. `full`: only says that there are too many connections.
  boost::asio::awaitable<void> run(bool full);
  void close_if_idle();
  // Ends everything at once; a running exchange is abandoned.
  void close();
  boost::asio::ip::tcp::socket::executor_type executor() { return socket_.get_executor(); }

 private:
  struct Head;  // what is known of a request once its headers are read

  // One request and its answer; false when the connection must end.
  boost::asio::awaitable<bool> serve_one();
  boost::asio::awaitable<bool> wait_for_bytes();
  boost::asio::awaitable<bool> exchange(HttpRequest request, const Head& head);
  boost::asio::awaitable<bool> send_pending(Exchange::Pending pending, const Head& head, bool& begun);
  boost::asio::awaitable<bool> send_response(const HttpResponse& response, const Head& head);
  boost::asio::awaitable<void> refuse(int status, std::string message);
  // Sends in pieces, each within the write time-out; false if the client is gone or too slow.
  boost::asio::awaitable<bool> write_all(std::string_view data);
  // Reads ahead while an answer is on its way, so that a client that leaves is noticed.
  boost::asio::awaitable<void> watch();
  boost::asio::awaitable<void> stop_watching();
  // Lets the client read the last answer before the connection goes.
  boost::asio::awaitable<void> linger();
  void woken();  // by the exchange
  void arm(std::chrono::milliseconds timeout);
  void disarm();

  boost::asio::ip::tcp::socket socket_;
  ConnectionContext& context_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer signal_;  // never expires; cancelled to wake the waiting coroutine
  boost::beast::flat_buffer buffer_;
  std::shared_ptr<Exchange> exchange_;
  uint64_t deadline_number_ = 0;
  bool timed_out_ = false;
  bool idle_ = false;
  bool closed_ = false;
  bool gone_ = false;  // the client left during an exchange
  bool watching_ = false;
  bool stop_watching_ = false;
};

}  // namespace trireme::serve
