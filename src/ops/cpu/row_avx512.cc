#include "ops/cpu/row_table.h"
#include "ops/cpu/vec_avx512.h"

namespace trireme::ops::cpu {

constinit const RowKernels kRowKernelsAvx512 = make_row_kernels<Vec>();

}  // namespace trireme::ops::cpu
