// The HTTP layer alone, with a small application behind it and clients that behave well and badly.
#include "serve/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/client.h"

namespace trireme::serve {
namespace {

using namespace std::chrono_literals;
using testing::Answer;
using testing::Client;

// /echo answers with the body, /stream with three events, /held waits for the test, /flood with more than the client
// reads.
class Application : public Handler {
 public:
  std::optional<HttpResponse> screen(const HttpRequest& request) override {
    if (request.path == "/refused") return HttpResponse{.status = 404, .body = "refused", .headers = {}};
    return std::nullopt;
  }
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    exchange->on_abandoned([this] { ++abandoned; });
    if (request.path == "/stream") {
      exchange->begin_stream();
      for (const char* event : {"one\n\n", "two\n\n", "three\n\n"}) exchange->write(event);
      exchange->finish();
    } else if (request.path == "/held" || request.path == "/held-stream") {
      if (request.path == "/held-stream") exchange->begin_stream();
      const std::lock_guard lock(mutex);
      held.push_back(std::move(exchange));
    } else if (request.path == "/flood") {
      exchange->begin_stream();
      flood = std::thread([this, exchange] {
        const std::string piece(64 * 1024, 'x');
        while (!exchange->abandoned() && written < (size_t{64} << 20)) {
          exchange->write(piece);
          written += piece.size();
          std::this_thread::sleep_for(1ms);
        }
        exchange->finish();
      });
    } else {
      exchange->send({.status = 200,
                      .content_type = "text/plain",
                      .body = request.method + " " + request.body,
                      .headers = {{"X-Path", request.path}}});
    }
  }
  HttpResponse protocol_error(int status, const std::string& message) override {
    return {.status = status, .body = message, .headers = {}};
  }

  ~Application() override {
    if (flood.joinable()) flood.join();
  }

  std::atomic<int> abandoned{0};
  std::atomic<size_t> written{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  std::thread flood;
};

// Waits up to 10 s.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

class HttpServerTest : public ::testing::Test {
 protected:
  void serve(HttpOptions options = {}) {
    server = std::make_unique<HttpServer>(options);
    server->start(application);
  }
  size_t held_count() {
    const std::lock_guard lock(application.mutex);
    return application.held.size();
  }
  Application application;
  std::unique_ptr<HttpServer> server;  // stops before the application goes
};

TEST_F(HttpServerTest, KeepsConnections) {
  serve();
  Client client(server->port());
  for (int i = 0; i < 3; ++i) {
    const Answer answer = client.post("/echo?x=1", "body " + std::to_string(i));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST body " + std::to_string(i));
    EXPECT_EQ(answer.headers.at("x-path"), "/echo");
  }
  EXPECT_EQ(server->connections(), 1);
  const Answer last = client.get("/echo", "Connection: close\r\n");
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(application.abandoned, 0);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  serve();
  Client client(server->port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    const std::string body = std::to_string(i);
    all += "POST /" + std::string(i % 2 == 0 ? "echo" : "stream") +
           " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 50; ++i) {
    const Answer answer = client.read_answer();
    ASSERT_TRUE(answer.complete) << i;
    EXPECT_EQ(answer.body, i % 2 == 0 ? "POST " + std::to_string(i) : "one\n\ntwo\n\nthree\n\n");
  }
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndContinues) {
  serve();
  Client client(server->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  std::this_thread::sleep_for(20ms);
  client.send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST abcde");
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.read_answer().body, "POST ok");
}

TEST_F(HttpServerTest, StreamsToOldClientsWithoutChunks) {
  serve();
  Client client(server->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.body, "one\n\ntwo\n\nthree\n\n");
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  serve();
  Client client(server->port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_answer(true).headers.at("content-length"), "5");
  EXPECT_EQ(client.get("/echo").body, "GET ");
}

TEST_F(HttpServerTest, RefusesWhatIsTooLargeOrNoHttp) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 1000;
  serve(options);
  const auto status_of = [&](const std::string& text) {
    Client client(server->port());
    client.send(text);
    const Answer answer = client.read_answer();
    EXPECT_TRUE(client.closed()) << text.substr(0, 80);
    return answer.status;
  };
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x')), 413);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx"), 413);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') +
                      "\r\n0\r\n\r\n"),
            413);
  EXPECT_EQ(status_of("GET /echo HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /echo HTTP/9.9\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  // Its body must not be taken for a second request.
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nGET /echo HTTP/1.1\r\n\r\n"), 501);
  for (const char* list : {"gzip, chunked", "chunked, chunked", "identity", "chunked;q=1", "x-chunked"}) {
    EXPECT_EQ(status_of(std::string("POST /echo HTTP/1.1\r\nTransfer-Encoding: ") + list +
                        "\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /echo HTTP/1.1\r\n\r\n"),
              501)
        << list;
  }
  EXPECT_EQ(status_of(std::string("GET /\0x HTTP/1.1\r\n\r\n", 20)), 400);
  EXPECT_EQ(status_of("POST /refused HTTP/1.1\r\nContent-Length: 500\r\n\r\n" + std::string(500, 'x')), 404);
  EXPECT_EQ(application.abandoned, 0);
}

TEST_F(HttpServerTest, TakesChunkedInAnyCase) {
  serve();
  Client client(server->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:  CHUNKED \r\n\r\n3\r\nabc\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST abc");
}

// The end of what a client sends may be read while the answer is on its way, and is not reported again.
TEST_F(HttpServerTest, ConnectionsOfClientsThatLeaveAfterTheAnswerEnd) {
  serve();
  for (int i = 0; i < 300; ++i) {
    Client brief(server->port());
    brief.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    if (i % 3 == 1) brief.end_sending();
    if (i % 3 != 2) brief.read_answer();
  }
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; })) << server->connections() << " are left";
}

// The same at leisure: the end arrives while the application works on the answer.
TEST_F(HttpServerTest, AClientThatEndsSendingCountsAsGone) {
  serve();
  Client half(server->port());
  half.send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return held_count() == 1; }));
  half.end_sending();
  EXPECT_TRUE(eventually([&] { return application.abandoned == 1 && server->connections() == 0; }));
  EXPECT_TRUE(half.closed());
}

// Every server must take the form that clients use towards a proxy.
TEST_F(HttpServerTest, TakesAbsoluteTargets) {
  serve();
  Client client(server->port());
  const std::pair<const char*, const char*> targets[] = {{"http://127.0.0.1:80/echo?x=/y", "/echo"},
                                                         {"http://host", "/"},
                                                         {"http://host?x=/y", "/"},
                                                         {"/a://b/c", "/a://b/c"},
                                                         {"*", "*"}};
  for (const auto& [target, path] : targets) EXPECT_EQ(client.get(target).headers.at("x-path"), path) << target;
}

TEST_F(HttpServerTest, GivesUpOnSlowRequests) {
  HttpOptions options;
  options.header_timeout = 100ms;
  options.body_timeout = 100ms;
  options.idle_timeout = 200ms;
  serve(options);
  Client slow_head(server->port());
  slow_head.send("POST /echo HTTP/1.1\r\nHos");
  EXPECT_EQ(slow_head.read_answer().status, 408);
  EXPECT_TRUE(slow_head.closed());
  Client slow_body(server->port());
  slow_body.send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(slow_body.read_answer().status, 408);
  EXPECT_TRUE(slow_body.closed());
  Client silent(server->port());
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(HttpServerTest, NoticesClientsThatLeave) {
  serve();
  for (const char* path : {"/held", "/held-stream"}) {
    Client polite(server->port());
    Client rude(server->port());
    polite.send_post(path, "x");
    rude.send_post(path, "x");
    ASSERT_TRUE(eventually([&] { return held_count() == 2; }));
    EXPECT_EQ(application.abandoned, 0);
    polite.leave();
    rude.reset();
    EXPECT_TRUE(eventually([&] { return application.abandoned == 2; })) << path;
    for (const auto& exchange : application.held) EXPECT_TRUE(exchange->abandoned());
    application.held.clear();
    application.abandoned = 0;
  }
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(HttpServerTest, AnswersLateAndFromAnotherThread) {
  serve();
  Client client(server->port());
  client.send_post("/held", "x");
  ASSERT_TRUE(eventually([&] { return held_count() == 1; }));
  std::this_thread::sleep_for(50ms);
  application.held[0]->send({.status = 418, .body = "late", .headers = {}});
  application.held[0]->send({.status = 200, .body = "twice", .headers = {}});  // does nothing
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 418);
  EXPECT_EQ(answer.body, "late");
  EXPECT_EQ(client.get("/echo").status, 200);
  EXPECT_EQ(application.abandoned, 0);
}

TEST_F(HttpServerTest, SlowReaderIsDropped) {
  HttpOptions options;
  options.max_queued_bytes = 256 * 1024;
  serve(options);
  Client client(server->port(), 4096);
  client.send_post("/flood", "x");
  EXPECT_TRUE(eventually([&] { return application.abandoned == 1; }));
  EXPECT_LT(application.written, size_t{32} << 20);  // the rest sat in the kernel's buffers
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(HttpServerTest, ClientThatNeverReadsIsDropped) {
  HttpOptions options;
  options.write_timeout = 200ms;
  options.max_queued_bytes = size_t{1} << 30;
  serve(options);
  Client client(server->port(), 4096);
  client.send_post("/flood", "x");
  EXPECT_TRUE(eventually([&] { return application.abandoned == 1; }));
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST_F(HttpServerTest, PipelinedFloodIsLeftToTheKernel) {
  serve();
  Client client(server->port());
  client.send_post("/held", "x");
  ASSERT_TRUE(eventually([&] { return held_count() == 1; }));
  // More than is read ahead; the answer still comes, and then the rest is read as requests.
  const std::string request = "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n";
  std::string many;
  for (int i = 0; i < 5000; ++i) many += request;
  std::thread sender([&] { client.send(many); });
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(application.abandoned, 0);
  application.held[0]->send({.status = 200, .body = "first", .headers = {}});
  EXPECT_EQ(client.read_answer().body, "first");
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(client.read_answer().body, "GET ") << i;
  sender.join();
}

TEST_F(HttpServerTest, LimitsConnections) {
  HttpOptions options;
  options.max_connections = 2;
  serve(options);
  Client first(server->port());
  Client second(server->port());
  EXPECT_EQ(first.get("/echo").status, 200);
  EXPECT_EQ(second.get("/echo").status, 200);
  Client third(server->port());
  EXPECT_EQ(third.read_answer().status, 503);
  EXPECT_TRUE(third.closed());
  first.leave();
  EXPECT_TRUE(eventually([&] { return server->connections() <= 1; }));
  Client fourth(server->port());
  EXPECT_EQ(fourth.get("/echo").status, 200);
}

TEST_F(HttpServerTest, DrainsAndStops) {
  serve();
  Client idle(server->port());
  EXPECT_EQ(idle.get("/echo").status, 200);
  Client busy(server->port());
  busy.send_post("/held", "x");
  Client cut(server->port());
  cut.send_post("/held-stream", "x");
  ASSERT_TRUE(eventually([&] { return held_count() == 2; }));
  EXPECT_FALSE(server->drain(50ms));
  EXPECT_TRUE(idle.closed());
  EXPECT_THROW(Client(server->port()), std::runtime_error);
  for (const auto& exchange : application.held)
    exchange->send({.status = 200, .body = "done", .headers = {}});  // a stream takes none
  const Answer answer = busy.read_answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_TRUE(busy.closed());
  EXPECT_EQ(application.abandoned, 0);
  server->stop();
  EXPECT_TRUE(cut.closed());
  EXPECT_EQ(application.abandoned, 1);
  EXPECT_EQ(server->connections(), 0);
}

TEST_F(HttpServerTest, SaysWhatIsWrongWithTheAddress) {
  serve();
  HttpOptions same;
  same.port = server->port();
  try {
    HttpServer second(same);
    second.start(application);
    FAIL() << "the port was taken twice";
  } catch (const Failure& error) {
    EXPECT_NE(std::string(error.what()).find("port " + std::to_string(same.port)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("in use"), std::string::npos) << error.what();
  }
  HttpOptions nowhere;
  nowhere.host = "no.such.host.invalid";
  EXPECT_THROW(HttpServer{nowhere}, BadInput);
}

}  // namespace
}  // namespace trireme::serve
