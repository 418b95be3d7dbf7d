#include "cli/machine_rates.h"

#include <gtest/gtest.h>

#include "ops/select.h"

namespace trireme::cli {
namespace {

TEST(MachineRates, AreMeasuredOnSeveralThreads) {
  ThreadPool pool(2);
  EXPECT_GT(measure_read_rate(pool), 1e8);
  for (const std::string_view isa : ops::available_isas()) {
    const bool measured = isa == "avx2" || isa == "avx512";
    const std::optional<double> peak = measure_peak_flops(pool, isa);
    ASSERT_EQ(peak.has_value(), measured) << isa;
    EXPECT_GT(peak.value_or(1e10), 1e9) << isa;
  }
}

}  // namespace
}  // namespace trireme::cli
