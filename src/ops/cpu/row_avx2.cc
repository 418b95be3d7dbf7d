#include "ops/cpu/row_table.h"
#include "ops/cpu/vec_avx2.h"

namespace trireme::ops::cpu {

constinit const RowKernels kRowKernelsAvx2 = make_row_kernels<Vec>();

}  // namespace trireme::ops::cpu
