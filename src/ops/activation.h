// Gated activations of MLPs.
#pragma once

#include <cstdint>

namespace trireme::ops {

struct Glu {
  enum class Kind : uint8_t {
    situ,    // beta * tanh(g / beta) * sigmoid(g) * linear_beta * tanh(u / linear_beta)
    swiglu,  // g * sigmoid(g) * u
  };
  Kind kind = Kind::situ;
  float beta = 4.0F;
  float linear_beta = 25.0F;
};

}  // namespace trireme::ops
