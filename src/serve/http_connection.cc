// Asio's coroutine frames come from its own recycling allocator, whose operator new and delete GCC 12 takes for a
// mismatch once one of them is inlined; and GCC warns that its thread sanitizer does not follow Asio's fences, which
// only leads to reports, not to faults.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#pragma GCC diagnostic ignored "-Wtsan"
// With sanitizers it also takes Beast's empty optionals for uninitialized ones.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "serve/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/verb.hpp>
#include <ctime>
#include <optional>

namespace trireme::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;

namespace {

constexpr size_t kReadAhead = 64 * 1024;  // most bytes of later requests that are read while an answer is on its way
constexpr size_t kPiece = 64 * 1024;      // bytes of one write
constexpr std::chrono::milliseconds kLinger{2'000};  // for the client to read the last answer

auto into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  const size_t length = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, length};
}

std::string status_line(int status) {
  const std::string reason(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status))));
  return fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", status, reason, http_date());
}

std::string text_of(boost::beast::string_view view) { return {view.data(), view.size()}; }

// The path of a target: clients behind a proxy put scheme and host before it ("http://host:8000/health").
std::string path_of(std::string target) {
  target.resize(std::min(target.find_first_of("?#"), target.size()));
  const size_t scheme = target.starts_with('/') ? std::string::npos : target.find("://");
  if (scheme == std::string::npos) return target;
  const size_t slash = target.find('/', scheme + 3);
  return slash == std::string::npos ? "/" : target.substr(slash);
}

// Whether a body, if there is one, is coded as nothing or as chunks only.
template <typename Fields>
bool plain_or_chunked(const Fields& fields) {
  const size_t lines = fields.count(http::field::transfer_encoding);
  return lines == 0 || (lines == 1 && boost::beast::iequals(fields[http::field::transfer_encoding], "chunked"));
}

}  // namespace

struct Connection::Head {
  bool keep_alive = true;
  bool chunked = true;   // the client understands chunks (HTTP/1.1)
  bool no_body = false;  // an answer to HEAD
};

Connection::Connection(asio::ip::tcp::socket socket, ConnectionContext& context)
    : socket_(std::move(socket)),
      context_(context),
      deadline_(socket_.get_executor()),
      signal_(socket_.get_executor()) {
  signal_.expires_at(std::chrono::steady_clock::time_point::max());
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Notices peers that vanish without a word.
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

awaitable<void> Connection::run(bool full) {
  if (full) {
    co_await refuse(503, "too many connections; try again later");
    co_return;
  }
  for (bool more = true; more;) {
    more = co_await serve_one();
    if (context_.draining) more = false;
  }
  close();
}

void Connection::close_if_idle() {
  if (idle_) close();
}

void Connection::close() {
  closed_ = true;
  disarm();
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  signal_.cancel();
  if (const auto running = exchange_) running->abandon();
}

void Connection::arm(std::chrono::milliseconds timeout) {
  const uint64_t number = ++deadline_number_;
  timed_out_ = false;
  deadline_.expires_after(timeout);
  deadline_.async_wait([self = shared_from_this(), number](error_code error) {
    if (error || self->deadline_number_ != number) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void Connection::disarm() {
  ++deadline_number_;
  deadline_.cancel();
}

awaitable<bool> Connection::wait_for_bytes() {
  if (buffer_.size() > 0) co_return true;
  idle_ = true;
  arm(context_.options.idle_timeout);
  error_code error;
  const size_t count = co_await socket_.async_read_some(buffer_.prepare(4096), into(error));
  idle_ = false;
  buffer_.commit(count);
  co_return !error;
}

awaitable<bool> Connection::serve_one() {
  if (context_.draining || closed_) co_return false;
  if (!co_await wait_for_bytes()) co_return false;

  http::request_parser<http::string_body> parser;
  parser.header_limit(context_.options.max_header_bytes);
  parser.body_limit(context_.options.max_body_bytes);
  error_code error;
  arm(context_.options.header_timeout);
  co_await http::async_read_header(socket_, buffer_, parser, into(error));
  HttpRequest request;
  Head head;
  if (!error) {
    const auto& message = parser.get();
    request.method = text_of(message.method_string());
    request.path = path_of(text_of(message.target()));
    request.authorization = text_of(message[http::field::authorization]);
    head.keep_alive = message.keep_alive();
    head.chunked = message.version() >= 11;
    head.no_body = message.method() == http::verb::head;
    // Only chunks mark a body's end; the bytes of another coding would be taken for the next request.
    if (!plain_or_chunked(message)) {
      co_await refuse(501, "of the transfer encodings only chunked is supported, and only by itself");
      co_return false;
    }
    const bool has_body = !parser.is_done();
    if (auto answer = context_.handler->screen(request)) {
      // A body that nobody reads cannot be told from the next request.
      if (has_body) head.keep_alive = false;
      disarm();
      const bool sent = co_await send_response(*answer, head);
      if (has_body && sent) co_await linger();
      co_return sent&& head.keep_alive;
    }
    const std::string expect = text_of(message[http::field::expect]);
    if (has_body && boost::beast::iequals(expect, "100-continue") && buffer_.size() == 0) {
      if (!co_await write_all("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    arm(context_.options.body_timeout);
    co_await http::async_read(socket_, buffer_, parser, into(error));
  }
  disarm();
  if (closed_) co_return false;
  if (error) {
    if (timed_out_) {
      co_await refuse(408, "the request did not arrive in time");
    } else if (error == http::error::header_limit) {
      co_await refuse(431,
                      fmt::format("the request's headers have more than {} bytes", context_.options.max_header_bytes));
    } else if (error == http::error::body_limit) {
      co_await refuse(413, fmt::format("the request's body has more than {} bytes", context_.options.max_body_bytes));
    } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      co_await refuse(400, "not a valid HTTP/1.1 request: " + error.message());
    }
    co_return false;
  }
  request.body = std::move(parser.get().body());
  co_return co_await exchange(std::move(request), head);
}

awaitable<bool> Connection::exchange(HttpRequest request, const Head& head) {
  gone_ = false;
  const std::weak_ptr<Connection> weak = weak_from_this();
  exchange_ = std::make_shared<Exchange>(
      [weak] {
        if (const auto self = weak.lock()) asio::post(self->executor(), [self] { self->woken(); });
      },
      context_.options.max_queued_bytes);
  stop_watching_ = false;
  watching_ = true;
  asio::co_spawn(
      executor(), [self = shared_from_this()] { return self->watch(); }, asio::detached);
  context_.handler->handle(std::move(request), exchange_);

  bool alive = true;
  bool begun = false;
  for (bool finished = false; alive && !finished;) {
    Exchange::Pending pending = exchange_->take();
    finished = pending.finished;
    alive = !gone_ && !closed_ && !pending.abandoned;
    if (!alive) break;
    if (!pending.finished && pending.data.empty() && (begun || !pending.streaming)) {
      error_code ignored;
      co_await signal_.async_wait(into(ignored));
      continue;
    }
    alive = co_await send_pending(std::move(pending), head, begun);
  }
  if (!alive) {
    close();  // abandons the exchange
  }
  co_await stop_watching();
  exchange_.reset();
  // The client may have left behind the last byte of the answer; its end was read then and does not come again.
  co_return alive && !gone_ && head.keep_alive && (head.chunked || !begun);
}

void Connection::woken() {
  signal_.cancel();
  // A client that does not read holds a write, which would wait for its time-out.
  error_code ignored;
  if (exchange_ && exchange_->abandoned()) socket_.cancel(ignored);
}

awaitable<bool> Connection::send_pending(Exchange::Pending pending, const Head& head, bool& begun) {
  if (pending.response) co_return co_await send_response(*pending.response, head);
  std::string out;
  if (!begun) {
    begun = true;
    const bool keep = head.keep_alive && head.chunked;
    out = status_line(200) + "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n" +
          (head.chunked ? "Transfer-Encoding: chunked\r\n" : "") + (keep ? "" : "Connection: close\r\n") + "\r\n";
  }
  if (!pending.data.empty() && head.chunked) out += fmt::format("{:x}\r\n{}\r\n", pending.data.size(), pending.data);
  if (!head.chunked) out += pending.data;
  if (pending.finished && head.chunked) out += "0\r\n\r\n";
  co_return co_await write_all(out);
}

awaitable<bool> Connection::send_response(const HttpResponse& response, const Head& head) {
  std::string out = status_line(response.status);
  out += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", response.content_type, response.body.size());
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  if (!head.keep_alive || context_.draining) out += "Connection: close\r\n";
  // HTTP/1.0 clients keep a connection only if told so.
  if (head.keep_alive && !head.chunked) out += "Connection: keep-alive\r\n";
  out += "\r\n";
  if (!head.no_body) out += response.body;
  co_return co_await write_all(out);
}

awaitable<void> Connection::refuse(int status, std::string message) {
  Head head;
  head.keep_alive = false;
  const HttpResponse response = context_.handler->protocol_error(status, message);
  const bool sent = co_await send_response(response, head);
  if (sent) co_await linger();
}

awaitable<bool> Connection::write_all(std::string_view data) {
  while (!data.empty()) {
    if (closed_) co_return false;
    const std::string_view piece = data.substr(0, kPiece);
    arm(context_.options.write_timeout);
    error_code error;
    co_await asio::async_write(socket_, asio::buffer(piece.data(), piece.size()), into(error));
    disarm();
    if (error || closed_ || gone_) co_return false;
    data.remove_prefix(piece.size());
    // What is behind an overflow is of no use to anyone.
    if (exchange_ && exchange_->abandoned()) co_return false;
  }
  co_return true;
}

awaitable<void> Connection::watch() {
  error_code error;
  while (!stop_watching_ && !error) {
    if (buffer_.size() >= kReadAhead) {
      // The client sends on without waiting for answers: it is left to the kernel's buffers, and only a reset is
      // noticed.
      co_await socket_.async_wait(asio::ip::tcp::socket::wait_error, into(error));
      if (!error) error = asio::error::connection_reset;
    } else {
      const size_t count = co_await socket_.async_read_some(buffer_.prepare(4096), into(error));
      buffer_.commit(count);
    }
  }
  if (error && error != asio::error::operation_aborted) {
    gone_ = true;
    // Wakes a write that would wait for the client's window.
    error_code ignored;
    socket_.cancel(ignored);
    if (const auto running = exchange_) running->abandon();
  }
  watching_ = false;
  signal_.cancel();
}

awaitable<void> Connection::stop_watching() {
  stop_watching_ = true;
  error_code ignored;
  if (watching_ && socket_.is_open()) socket_.cancel(ignored);
  while (watching_) co_await signal_.async_wait(into(ignored));
}

awaitable<void> Connection::linger() {
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  arm(kLinger);
  while (!error && !timed_out_) {
    buffer_.clear();
    buffer_.commit(co_await socket_.async_read_some(buffer_.prepare(kReadAhead), into(error)));
  }
  disarm();
}

}  // namespace trireme::serve
