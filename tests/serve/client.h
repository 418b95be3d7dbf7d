// A plain blocking HTTP client over one socket, so that tests can misbehave.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::serve::testing {

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // false: the connection ended first
};

class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const timeval timeout{120, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("connect failed");
  }
  ~Client() { leave(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void leave() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // Sends nothing more, but still reads.
  void end_sending() { shutdown(fd_, SHUT_WR); }
  // Closes with a reset instead of an orderly end.
  void reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    leave();
  }

  // Whether all was taken.
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t count = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      data.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }

  // Reads until `text` is there (and takes everything up to its end), or nothing when the connection ends or 120 s
  // pass.
  std::optional<std::string> read_until(std::string_view text) {
    for (;;) {
      if (const size_t at = held_.find(text); at != std::string::npos) {
        std::string taken = held_.substr(0, at + text.size());
        held_.erase(0, taken.size());
        return taken;
      }
      if (!fill()) return std::nullopt;
    }
  }

  // True if the server closed within 120 s; bytes that come before it are dropped.
  bool closed() {
    char bytes[4096];
    for (;;) {
      const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
      if (count == 0 || (count < 0 && errno == ECONNRESET)) return true;
      if (count < 0) return false;
    }
  }

  Answer read_answer(bool head_only = false) {
    Answer answer;
    const auto head = read_until("\r\n\r\n");
    if (!head) return answer;
    answer.status = std::atoi(head->substr(9, 3).c_str());
    for (size_t at = head->find("\r\n") + 2; at + 2 < head->size();) {
      const size_t end = head->find("\r\n", at);
      const size_t colon = head->find(": ", at);
      std::string name = head->substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      answer.headers[name] = head->substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (head_only) {
      answer.complete = true;
    } else if (answer.headers.contains("content-length")) {
      const auto length = static_cast<size_t>(std::atoll(answer.headers["content-length"].c_str()));
      while (held_.size() < length && fill()) {
      }
      answer.complete = held_.size() >= length;
      answer.body = held_.substr(0, length);
      held_.erase(0, answer.body.size());
    } else if (answer.headers.contains("transfer-encoding")) {
      answer.complete = read_chunks(answer.body);
    } else {
      while (fill()) {
      }
      answer.body = std::exchange(held_, {});
      answer.complete = true;
    }
    return answer;
  }

  Answer get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    return read_answer();
  }
  void send_post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers +
         "\r\n" + body);
  }
  Answer post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send_post(path, body, headers);
    return read_answer();
  }

 private:
  bool fill() {
    char bytes[16384];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    held_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  bool read_chunks(std::string& body) {
    for (;;) {
      const auto line = read_until("\r\n");
      if (!line) return false;
      const size_t size = std::strtoull(line->c_str(), nullptr, 16);
      while (held_.size() < size + 2) {
        if (!fill()) return false;
      }
      body += held_.substr(0, size);
      held_.erase(0, size + 2);
      if (size == 0) return true;
    }
  }

  int fd_;
  std::string held_;
};

}  // namespace trireme::serve::testing
