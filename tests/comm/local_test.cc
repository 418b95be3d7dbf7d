#include "comm/local.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "base/error.h"
#include "comm/operation_checks.h"
#include "comm/stream.h"

namespace trireme::comm {
namespace {

using checks::range;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// What run_local throws, "" if nothing.
template <class Error = Failure>
std::string error_of(int size, const LocalOptions& options, const std::function<void(World&)>& body) {
  try {
    run_local(size, options, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The same body in one group of all ranks.
template <class Error = Failure>
std::string group_error_of(int size, const LocalOptions& options, const std::function<void(Communicator&)>& body) {
  return error_of<Error>(size, options, [&](World& world) { body(*world.group("work", range(0, size))); });
}

class LocalSizes : public testing::TestWithParam<int> {};

TEST_P(LocalSizes, EveryOperation) {
  for (const bool checked : {false, true}) {
    run_local(GetParam(), {.checked = checked}, [](World& world) {
      const std::vector<int> members = range(0, world.size());
      checks::every_operation(*world.group("work", members), members);
    });
  }
}

TEST_P(LocalSizes, Traffic) {
  for (const bool checked : {false, true}) run_local(GetParam(), {.checked = checked}, checks::traffic_counts);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalSizes, testing::Values(1, 2, 3, 8));

TEST(Local, RandomOperationsBackToBack) {
  const auto begin = std::chrono::steady_clock::now();
  run_local(16, {}, [](World& world) { checks::random_operations(world, 1, 3000); });
  run_local(16, {.checked = true}, [](World& world) { checks::random_operations(world, 2, 500); });
  RecordProperty("milliseconds",
                 static_cast<int>((std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(1)));
}

TEST(Local, GroupsOfTheSameNameAndMembersAreApart) {
  run_local(2, {}, [](World& world) {
    const auto first = world.group("work", range(0, 2));
    const auto second = world.group("work", range(0, 2));
    const std::byte one{1};
    const std::byte two{2};
    std::array<std::byte, 1> got{};
    if (world.rank() == 0) {
      second->send(1, 0, std::span(&two, 1));
      first->send(1, 0, std::span(&one, 1));
    } else {
      first->receive(0, 0, got);
      EXPECT_EQ(got[0], one);
      second->receive(0, 0, got);
      EXPECT_EQ(got[0], two);
    }
  });
}

TEST(Local, HostsAreRunsOfRanks) {
  run_local(5, {.ranks_per_host = 2}, [](World& world) {
    EXPECT_EQ(world.host(1), 0);
    EXPECT_EQ(world.host(2), 1);
    EXPECT_EQ(world.host(4), 2);
    EXPECT_THROW(world.host(5), BadInput);
  });
  run_local(3, {}, [](World& world) { EXPECT_EQ(world.host(2), 0); });
}

TEST(Local, RowsMayOverlapAndBytesMayNot) {
  run_local(2, {}, [](World& world) {
    const auto group = world.group("work", range(0, 2));
    for (const Wire wire : {Wire::f32, Wire::bf16}) {
      std::vector<float> rows(6, -1.0F);
      const int64_t mine = world.rank() * 3;
      for (int64_t i = 0; i < 3; ++i) rows[static_cast<size_t>(mine + i)] = static_cast<float>(mine + i);
      group->all_gather(ConstRows{rows.data() + mine, 1, 3, 3}, Rows{rows.data(), 2, 3, 3}, wire);
      EXPECT_EQ(rows, (std::vector<float>{0, 1, 2, 3, 4, 5}));
    }
    std::vector<std::byte> bytes(4);
    EXPECT_THROW(group->all_gather(std::span(bytes).first(2), bytes), BadInput);
    EXPECT_THROW(group->all_to_all(bytes, bytes), BadInput);
  });
}

TEST(Local, WrongSizesAreBadInput) {
  run_local(2, {}, [](World& world) {
    const auto group = world.group("work", range(0, 2));
    std::vector<std::byte> three(3);
    std::vector<std::byte> four(4);
    std::vector<float> floats(64);
    const auto rows = [&](int64_t r, int64_t c, int64_t stride) { return Rows{floats.data(), r, c, stride}; };
    EXPECT_THROW(group->all_gather(three, four), BadInput);
    EXPECT_THROW(group->all_to_all(three, four), BadInput);
    EXPECT_THROW(group->all_to_all(three, std::vector<int64_t>{1, 2}, four, std::vector<int64_t>{2, 1}), BadInput);
    EXPECT_THROW(group->all_to_all(three, std::vector<int64_t>{4, -1}, four, std::vector<int64_t>{2, 2}), BadInput);
    EXPECT_THROW(group->all_to_all(three, std::vector<int64_t>{3}, four, std::vector<int64_t>{2, 2}), BadInput);
    EXPECT_THROW(group->all_gather(rows(2, 3, 3), rows(4, 4, 4), Wire::f32), BadInput);
    EXPECT_THROW(group->all_gather(rows(2, 3, 2), rows(4, 3, 3), Wire::f32), BadInput);
    EXPECT_THROW(group->all_to_all(rows(3, 3, 3), rows(3, 3, 3), Wire::f32), BadInput);
    EXPECT_THROW(group->reduce_scatter(rows(3, 3, 3), rows(1, 3, 3), Wire::f32), BadInput);
    EXPECT_THROW(group->reduce_scatter(Rows{nullptr, 2, 3, 3}, rows(1, 3, 3), Wire::f32), BadInput);
    EXPECT_THROW(group->broadcast(three, 2), BadInput);
    EXPECT_THROW(group->send(world.rank(), 0, three), BadInput);
    EXPECT_THROW(group->send(1 - world.rank(), -1, three), BadInput);
    EXPECT_THROW(group->receive(2, 0, three), BadInput);
    group->barrier();  // none of these had begun
    EXPECT_THROW(world.group("descending", std::vector<int>{1, 0}), BadInput);
    EXPECT_THROW(world.group("others", std::vector<int>{1 - world.rank()}), BadInput);
    EXPECT_THROW(world.group("beyond", std::vector<int>{world.rank(), 2}), BadInput);
    EXPECT_THROW(world.group("empty", std::vector<int>{}), BadInput);
  });
  EXPECT_THROW(run_local(0, {}, [](World&) {}), BadInput);
}

TEST(Local, MismatchedShapesAreNamed) {
  const std::string error = group_error_of(3, {.checked = true}, [](Communicator& group) {
    group.barrier();
    const int64_t cols = group.rank() == 2 ? 5 : 4;
    Matrix mine(2, cols);
    Matrix all(6, cols);
    group.all_gather(mine.view(), all.view(), Wire::bf16);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("group work: rank 2 calls all_gather of 2 x 5 floats as bf16 (its call 2)"),
                           HasSubstr("rank 0 calls all_gather of 2 x 4 floats as bf16 (its call 2)")));
}

TEST(Local, MismatchedOperationsAreNamed) {
  const std::string error = group_error_of(3, {.checked = true}, [](Communicator& group) {
    std::vector<std::byte> bytes(6);
    if (group.rank() == 1) group.broadcast(bytes, 2);
    group.barrier();
  });
  EXPECT_THAT(error, HasSubstr("rank 1 calls broadcast of 6 bytes from rank 2 (its call 1), rank 0 calls barrier"));
}

TEST(Local, MismatchedWiresRootsAndBlocksAreNamed) {
  const LocalOptions checked{.checked = true};
  EXPECT_THAT(group_error_of(2, checked,
                             [](Communicator& group) {
                               Matrix a(2, 3);
                               Matrix b(2, 3);
                               group.all_to_all(a.view(), b.view(), group.rank() == 1 ? Wire::bf16 : Wire::f32);
                             }),
              HasSubstr("rank 1 calls all_to_all of 2 x 3 floats as bf16"));
  EXPECT_THAT(group_error_of(2, checked,
                             [](Communicator& group) {
                               std::vector<std::byte> bytes(6);
                               group.broadcast(bytes, group.rank());
                             }),
              HasSubstr("rank 1 calls broadcast of 6 bytes from rank 1"));
  for (const bool check : {true, false}) {
    EXPECT_THAT(group_error_of(2, {.checked = check},
                               [](Communicator& group) {
                                 // Rank 0 sends rank 1 three bytes, rank 1 expects two.
                                 const std::vector<int64_t> out =
                                     group.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1, 1};
                                 const std::vector<int64_t> in =
                                     group.rank() == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2, 1};
                                 std::vector<std::byte> send(static_cast<size_t>(out[0] + out[1]));
                                 std::vector<std::byte> receive(static_cast<size_t>(in[0] + in[1]));
                                 group.all_to_all(send, out, receive, in);
                                 group.barrier();
                               }),
                HasSubstr("rank 0 sends 3 bytes to rank 1, which expects 2"));
  }
}

TEST(Local, WithoutChecksMismatchesEndTheCallToo) {
  for (const size_t bytes : {8U, 100000U}) {
    const std::string error = group_error_of(3, {}, [&](Communicator& group) {
      std::vector<std::byte> mine(bytes + (group.rank() == 1 ? 1 : 0));
      std::vector<std::byte> all(3 * mine.size());
      group.rank() == 2 ? group.broadcast(mine, 2) : group.all_gather(mine, all);
    });
    EXPECT_THAT(error, HasSubstr("all ranks of a group must make the same calls"));
  }
}

TEST(Local, AnExceptionEndsAllRanks) {
  std::atomic<int> ended = 0;
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of<BadInput>(6, {}, [&](World& world) {
    const auto group = world.group("work", range(0, world.size()));
    const auto pair = world.group("pair", world.rank() < 3 ? range(0, 3) : range(3, 6));
    group->barrier();
    if (world.rank() == 4) throw BadInput("no such file");
    try {
      std::array<std::byte, 1> data{};
      switch (world.rank()) {
        case 0:
          group->barrier();
          break;
        case 1:
          group->receive(0, 7, data);
          break;
        case 2:
          world.group("late", std::vector<int>{2, 4});
          break;
        default:
          pair->broadcast(data, 0);
      }
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("rank 4: no such file"));
      ++ended;
      throw;
    }
  });
  EXPECT_EQ(error, "rank 4: no such file");
  EXPECT_EQ(ended, 5);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Local, AbortEndsAllRanksFromAnyThread) {
  const std::string error = error_of(3, {}, [&](World& world) {
    const auto group = world.group("work", range(0, world.size()));
    if (world.rank() == 1) {
      std::thread([&] { world.abort("operator said stop"); }).join();
    }
    EXPECT_THROW(
        {
          group->barrier();
          if (world.rank() != 1) group->barrier();
        },
        Failure);
  });
  EXPECT_EQ(error, "rank 1: operator said stop");
}

// While one rank ends the job, others are in collectives whose memory the caller frees at once.
TEST(Local, ARankThatFailsAmongBigCollectivesHarmsNobody) {
  for (int n = 0; n < 20; ++n) {
    const std::string error = error_of(6, {}, [&](World& world) {
      const auto group = world.group("work", range(0, world.size()));
      const auto side = world.group("side", range(0, world.size()));
      Stream stream;
      try {
        for (int i = 0; i < 50; ++i) {
          const Event done = stream.run([&side] {
            std::vector<std::byte> mine(20000);
            std::vector<std::byte> all(6 * mine.size());
            side->all_gather(mine, all);
          });
          const std::vector<std::byte> all(120000);
          std::vector<std::byte> got(all.size());
          group->all_to_all(all, got);
          if (world.rank() == n % 6 && i == 30) throw Failure("planted");
          done.wait();
        }
      } catch (const Failure& failure) {
        world.abort(failure.what());  // before the stream is destroyed
        throw;
      }
    });
    EXPECT_EQ(error, "rank " + std::to_string(n % 6) + ": planted");
  }
}

TEST(Local, AWaitThatIsTooLongNamesWhoDidNotCome) {
  const LocalOptions impatient{.patience = std::chrono::seconds(1)};
  std::atomic<bool> over = false;
  const auto late = [&](World& world) {
    const auto group = world.group("work", range(0, world.size()));
    if (world.rank() == 1 || world.rank() == 3) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    try {
      group->barrier();
    } catch (...) {
      over = true;
      throw;
    }
  };
  EXPECT_THAT(error_of(4, impatient, late),
              AllOf(HasSubstr("group work: barrier ended"), HasSubstr("waited 1 s for ranks 1, 3 of 4")));
  EXPECT_THAT(
      group_error_of(2, impatient,
                     [](Communicator& group) {
                       std::array<std::byte, 1> data{};
                       if (group.rank() == 0) group.receive(1, 5, data);
                     }),
      AllOf(StartsWith("rank 0: group work: receive ended"), HasSubstr("for rank 1, which did not send with tag 5")));
}

TEST(Local, AMessageOfAnotherSizeNamesBoth) {
  const std::string error = group_error_of(2, {}, [](Communicator& group) {
    std::vector<std::byte> data(group.rank() == 0 ? 10 : 8);
    group.rank() == 0 ? group.send(1, 2, data) : group.receive(0, 2, data);
  });
  EXPECT_THAT(error, HasSubstr("group work: receive: rank 0 sent 10 bytes with tag 2 to rank 1, which expects 8"));
}

}  // namespace
}  // namespace trireme::comm
