// Element types, as checkpoints name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

enum class DType : uint8_t { f32, f16, bf16, f8_e4m3, u8, i32, i64 };

// Bytes of one element.
constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f8_e4m3:
    case DType::u8:
      return 1;
    case DType::i64:
      return 8;
  }
  return 0;
}

// The name in a safetensors header: "F32", "BF16", "F8_E4M3", ...
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::f8_e4m3:
      return "F8_E4M3";
    case DType::u8:
      return "U8";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
  }
  return "?";
}

constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType d : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::u8, DType::i32, DType::i64}) {
    if (dtype_name(d) == name) return d;
  }
  return std::nullopt;
}

}  // namespace trireme
