#include "comm/mpi_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace trireme::comm {
namespace {

// MPI counts are ints, so long messages go in pieces. A piece also bounds what the library stages.
constexpr int64_t kPiece = int64_t{16} << 20;
// Messages of all_to_all; below it are the tags of send and receive.
constexpr int kBlockTag = Communicator::kTags;
constexpr int kYields = 200;
constexpr std::chrono::microseconds kSleep{20};
constexpr int64_t kClockEvery = 64;  // tests between looks at the clock

int as_count(int64_t bytes) { return static_cast<int>(bytes); }

int64_t received(const MPI_Status& status) {
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "message size");
  return bytes;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const std::string& name, int rank, int size, bool checked, std::chrono::seconds patience,
                  MPI_Comm transport)
      : Communicator(name, rank, size, checked), patience_(patience), transport_(transport) {
    if (size > 1) check_mpi(MPI_Comm_set_errhandler(transport_, MPI_ERRORS_RETURN), "group " + name);
    warm_up();
  }

  ~MpiCommunicator() override {
    if (transport_ != MPI_COMM_NULL) MPI_Comm_free(&transport_);
  }

 private:
  std::string in_words(Operation operation) const {
    return fmt::format("group {}: {}", name(), operation_name(operation));
  }

  void wait(Operation operation, MPI_Request request) {
    wait_all(std::span(&request, 1), {}, patience_, in_words(operation));
  }

  void do_barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibarrier(transport_, &request), in_words(Operation::barrier));
    wait(Operation::barrier, request);
  }

  void do_broadcast(std::span<std::byte> data, int root) override {
    for (int64_t done = 0; done < std::ssize(data); done += kPiece) {
      const int64_t piece = std::min(kPiece, std::ssize(data) - done);
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Ibcast(data.data() + done, as_count(piece), MPI_BYTE, root, transport_, &request),
                in_words(Operation::broadcast));
      wait(Operation::broadcast, request);
    }
  }

  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (std::ssize(all) <= kPiece) {
      MPI_Request request = MPI_REQUEST_NULL;
      const int count = as_count(std::ssize(mine));
      check_mpi(MPI_Iallgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, transport_, &request),
                in_words(Operation::all_gather));
      return wait(Operation::all_gather, request);
    }
    const auto ranks = static_cast<size_t>(size());
    std::vector<Block> send(ranks, Block{const_cast<std::byte*>(mine.data()), std::ssize(mine)});
    std::vector<Block> receive;
    for (size_t r = 0; r < ranks; ++r) receive.push_back({all.data() + r * mine.size(), std::ssize(mine)});
    exchange_blocks(Operation::all_gather, send, receive);
  }

  void do_all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                     std::span<const int64_t> receive_bytes) override {
    exchange_blocks(Operation::all_to_all, blocks(const_cast<std::byte*>(send.data()), send_bytes),
                    blocks(receive.data(), receive_bytes));
  }

  struct Block {
    std::byte* data = nullptr;  // only read where it is sent
    int64_t bytes = 0;
  };

  static std::vector<Block> blocks(std::byte* data, std::span<const int64_t> bytes) {
    std::vector<Block> result;
    for (const int64_t count : bytes) {
      result.push_back({data, count});
      data += count;
    }
    return result;
  }

  // Block r of `send` goes to rank r, block r of `receive` comes from there; one message at least, in pieces.
  void exchange_blocks(Operation operation, std::span<const Block> send, std::span<const Block> receive) {
    const std::string what = in_words(operation);
    const auto me = static_cast<size_t>(rank());
    if (send[me].bytes > 0) std::memcpy(receive[me].data, send[me].data, static_cast<size_t>(send[me].bytes));
    struct Expected {
      int from;
      int64_t bytes;
    };
    std::vector<MPI_Request> requests;
    std::vector<Expected> expected;
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() - step + size()) % size();
      for_pieces(receive[static_cast<size_t>(from)], [&](std::byte* data, int64_t bytes) {
        expected.push_back({from, bytes});
        MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
        check_mpi(MPI_Irecv(data, as_count(bytes), MPI_BYTE, from, kBlockTag, transport_, &request), what);
      });
    }
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      for_pieces(send[static_cast<size_t>(to)], [&](std::byte* data, int64_t bytes) {
        MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
        check_mpi(MPI_Isend(data, as_count(bytes), MPI_BYTE, to, kBlockTag, transport_, &request), what);
      });
    }
    std::vector<MPI_Status> statuses(requests.size());
    wait_all(requests, statuses, patience_, what);
    for (const MPI_Status& status : statuses) {
      if (status.MPI_ERROR == MPI_ERR_TRUNCATE) {
        throw Failure(
            fmt::format("{}: rank {} sends more bytes to rank {} than it expects", what, status.MPI_SOURCE, rank()));
      }
      check_mpi(status.MPI_ERROR, what);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      if (received(statuses[i]) == expected[i].bytes) continue;
      throw Failure(fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}", what, expected[i].from,
                                received(statuses[i]), rank(), expected[i].bytes));
    }
  }

  template <class Use>
  static void for_pieces(Block block, const Use& use) {
    do {
      const int64_t piece = std::min(kPiece, block.bytes);
      use(block.data, piece);
      block.data += piece;
      block.bytes -= piece;
    } while (block.bytes > 0);
  }

  // A message is pieces of kPiece bytes and a last shorter one, perhaps empty, so that its end is known without its
  // size.
  void do_send(int to, int tag, std::span<const std::byte> data) override {
    std::vector<MPI_Request> requests;
    int64_t done = 0;
    for (int64_t piece = kPiece; piece == kPiece; done += piece) {
      piece = std::min(kPiece, std::ssize(data) - done);
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Isend(data.data() + done, as_count(piece), MPI_BYTE, to, tag, transport_, &request),
                in_words(Operation::send));
    }
    wait_all(requests, {}, patience_, fmt::format("{} to rank {} with tag {}", in_words(Operation::send), to, tag));
  }

  void do_receive(int from, int tag, std::span<std::byte> data) override {
    const std::string what = fmt::format("{} from rank {} with tag {}", in_words(Operation::receive), from, tag);
    int64_t total = 0;
    for (int64_t piece = kPiece; piece == kPiece; total += piece) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      wait_until(
          [&] {
            int found = 0;
            check_mpi(MPI_Improbe(from, tag, transport_, &found, &message, &status), what);
            return found != 0;
          },
          patience_, [&] { return what; });
      piece = received(status);
      // What does not fit is taken all the same: the error is to name the whole size.
      std::vector<std::byte> surplus;
      std::byte* to = data.data() + std::min(total, std::ssize(data));
      if (total + piece > std::ssize(data)) {
        surplus.resize(static_cast<size_t>(piece));
        to = surplus.data();
      }
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Imrecv(to, as_count(piece), MPI_BYTE, &message, &request), what);
      wait_all(std::span(&request, 1), {}, patience_, what);
    }
    if (total == std::ssize(data)) return;
    throw Failure(fmt::format("group {}: receive: rank {} sent {} bytes with tag {} to rank {}, which expects {}",
                              name(), from, total, tag, rank(), data.size()));
  }

  std::chrono::seconds patience_;
  MPI_Comm transport_;
};

}  // namespace

void check_mpi(int status, const std::string& what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(status, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw Failure(fmt::format("{}: MPI says: {}", what, std::string_view(text.data(), static_cast<size_t>(length))));
}

void wait_until(const std::function<bool()>& done, std::chrono::seconds patience,
                const std::function<std::string()>& what) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point until{};
  for (int64_t tests = 0; !done(); ++tests) {
    if (tests < kYields) {
      sched_yield();
      continue;
    }
    if (tests == kYields) until = Clock::now() + patience;
    if (patience.count() > 0 && tests % kClockEvery == 0 && Clock::now() > until) {
      throw Failure(fmt::format("{}: waited {} s for ranks that did not call", what(), patience.count()));
    }
    std::this_thread::sleep_for(kSleep);
  }
}

void wait_all(std::span<MPI_Request> requests, std::span<MPI_Status> statuses, std::chrono::seconds patience,
              const std::string& what) {
  const auto done = [&] {
    int all = 0;
    const int status = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all,
                                   statuses.empty() ? MPI_STATUSES_IGNORE : statuses.data());
    if (status == MPI_ERR_IN_STATUS && !statuses.empty()) return true;
    check_mpi(status, what);
    return all != 0;
  };
  wait_until(done, patience, [&] { return what; });
}

std::unique_ptr<Communicator> make_mpi_communicator(const std::string& name, int rank, int size, bool checked,
                                                    std::chrono::seconds patience, MPI_Comm transport) {
  return std::make_unique<MpiCommunicator>(name, rank, size, checked, patience, transport);
}

}  // namespace trireme::comm
