// The step compiled for one instruction set; build.py names the flags. Constant-initialised: nothing here may run when
// the library is loaded on a machine without these instructions.
#include "step.h"

namespace weir {
const Kernels kAvx512Kernels = {"avx512", AttentionScratch::bytes, run_step};
}
