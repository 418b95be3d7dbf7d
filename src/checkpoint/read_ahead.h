// Keeps the disk busy: while one tensor is being packed, the needed bytes that follow it in its file are already being
// read.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "checkpoint/safetensors.h"

namespace trireme::checkpoint {

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class ReadAhead {
 public:
  // The byte ranges of each file that will be wanted; nothing else is read ahead.
  void set_ranges(std::vector<std::vector<ByteRange>> ranges);

  // Bytes [begin, end) of `file`, the file of that number, are wanted now.
  void want(int64_t number, const SafetensorsFile& file, int64_t begin, int64_t end) const;

 private:
  struct FileState {
    std::vector<ByteRange> ranges;  // by rising begin, disjoint
    ByteRange asked;                // what was asked for last
  };

  mutable std::mutex mutex_;
  mutable std::vector<FileState> files_;
};

}  // namespace trireme::checkpoint
