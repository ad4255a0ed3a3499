// The step compiled for one instruction set; build.py names the flags. Constant-initialised: nothing here may run when
// the library is loaded on a machine without these instructions.
#include "step.h"

namespace weir {
const Kernels kAvx2Kernels = {"avx2", AttentionScratch::bytes, run_step};
}
