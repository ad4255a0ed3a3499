"""The decoder step on a CPU: C++ for AVX-512 with BF16, AVX-512 and AVX2, chosen at run time."""

from weir_kernels.cpu.library import available, usable_isas
from weir_kernels.cpu.model import CpuKernelError, CpuKvCache, CpuModel, CpuModelShape, PhaseClock, phase_clock
from weir_kernels.cpu.threads import compute_threads

__all__ = [
    "CpuKernelError",
    "CpuKvCache",
    "CpuModel",
    "CpuModelShape",
    "PhaseClock",
    "available",
    "compute_threads",
    "phase_clock",
    "usable_isas",
]
