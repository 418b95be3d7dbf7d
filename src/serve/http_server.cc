// GCC warns that its thread sanitizer does not follow Asio's fences, which only leads to reports, not to faults.
#pragma GCC diagnostic ignored "-Wtsan"

#include "serve/http_server.h"

// clang-format off
#include <utility>  // before Boost 1.74's awaitable.hpp, which forgets it
// clang-format on

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "serve/http_connection.h"

namespace trireme::serve {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct HttpServer::Core {
  explicit Core(const HttpOptions& http_options)
      : shared{http_options, nullptr, {}}, accept_strand(asio::make_strand(io)), acceptor(io) {}

  asio::awaitable<void> accept_loop();
  void admit(tcp::socket socket);
  template <typename Action>
  void for_each(Action action);

  asio::io_context io;
  ConnectionContext shared;
  asio::strand<asio::io_context::executor_type> accept_strand;  // the acceptor is only used on it once it listens
  tcp::acceptor acceptor;
  uint16_t port = 0;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  mutable std::mutex mutex;
  std::condition_variable ended;
  std::unordered_set<std::shared_ptr<Connection>> open;
};

asio::awaitable<void> HttpServer::Core::accept_loop() {
  asio::steady_timer pause(accept_strand);
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket(asio::make_strand(io));
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (!error) {
      try {
        admit(std::move(socket));
      } catch (const std::exception& thrown) {  // this connection is lost, not those that follow
        spdlog::error("accept: {}", thrown.what());
      }
      continue;
    }
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    // Most likely out of file descriptors; connections that end give some back.
    spdlog::warn("accept: {}", error.message());
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

void HttpServer::Core::admit(tcp::socket socket) {
  const auto executor = socket.get_executor();
  const auto connection = std::make_shared<Connection>(std::move(socket), shared);
  bool full = false;
  {
    const std::lock_guard lock(mutex);
    full = static_cast<int64_t>(open.size()) >= shared.options.max_connections;
    // A few more are let in to be told so; beyond that they are dropped.
    if (static_cast<int64_t>(open.size()) >= shared.options.max_connections + 64) return;
    open.insert(connection);
  }
  asio::co_spawn(
      executor, [connection, full] { return connection->run(full); },
      [this, connection](const std::exception_ptr& thrown) {
        try {
          if (thrown) std::rethrow_exception(thrown);
        } catch (const std::exception& error) {
          spdlog::error("connection: {}", error.what());
        }
        connection->close();
        const std::lock_guard lock(mutex);
        open.erase(connection);
        ended.notify_all();
      });
}

// Calls `action` for every open connection on that connection's strand.
template <typename Action>
void HttpServer::Core::for_each(Action action) {
  const std::lock_guard lock(mutex);
  for (const auto& connection : open) asio::post(connection->executor(), [connection, action] { action(*connection); });
}

HttpServer::HttpServer(const HttpOptions& options) : core_(std::make_shared<Core>(options)) {
  error_code error;
  tcp::resolver resolver(core_->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty())
    throw BadInput(fmt::format("--host {}: not an address or name of this machine", options.host));
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor& acceptor = core_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (error) throw Failure(fmt::format("cannot take {} port {}: {}", options.host, options.port, error.message()));
  core_->port = acceptor.local_endpoint().port();
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start(Handler& handler) {
  error_code error;
  core_->acceptor.listen(asio::socket_base::max_listen_connections, error);
  const HttpOptions& options = core_->shared.options;
  if (error) throw Failure(fmt::format("cannot listen on {} port {}: {}", options.host, port(), error.message()));
  core_->shared.handler = &handler;
  core_->work.emplace(asio::make_work_guard(core_->io));
  asio::co_spawn(
      core_->accept_strand, [core = core_.get()] { return core->accept_loop(); },
      [](const std::exception_ptr& thrown) {
        try {
          if (thrown) std::rethrow_exception(thrown);
        } catch (const std::exception& failed) {
          spdlog::critical("accept: {}; no further connections are taken", failed.what());
        }
      });
  try {
    for (int i = 0; i < options.threads; ++i) core_->threads.emplace_back([core = core_.get()] { core->io.run(); });
  } catch (const std::exception& thrown) {  // no memory, or no thread
    const size_t started = core_->threads.size();
    stop();
    throw Failure(
        fmt::format("I/O thread {} of {} cannot be started: {}", started + 1, options.threads, thrown.what()));
  }
}

uint16_t HttpServer::port() const { return core_->port; }

int64_t HttpServer::connections() const {
  const std::lock_guard lock(core_->mutex);
  return static_cast<int64_t>(core_->open.size());
}

bool HttpServer::drain(std::chrono::milliseconds grace) {
  if (core_->threads.empty()) return true;
  core_->shared.draining = true;
  asio::post(core_->accept_strand, [core = core_.get()] {
    error_code ignored;
    core->acceptor.close(ignored);
  });
  core_->for_each([](Connection& connection) { connection.close_if_idle(); });
  std::unique_lock lock(core_->mutex);
  return core_->ended.wait_for(lock, grace, [this] { return core_->open.empty(); });
}

void HttpServer::stop() {
  if (core_->threads.empty()) return;
  drain(std::chrono::milliseconds(0));
  core_->for_each([](Connection& connection) { connection.close(); });
  {
    std::unique_lock lock(core_->mutex);
    core_->ended.wait_for(lock, std::chrono::seconds(2), [this] { return core_->open.empty(); });
  }
  core_->work.reset();
  core_->io.stop();
  for (std::thread& thread : core_->threads) thread.join();
  core_->threads.clear();
}

}  // namespace trireme::serve
