"""What this machine can do, measured in the same run as the figures that stand beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_MATRIX = 2048
_READ_FLOATS = 64 << 20
_REPEATS = 8


@dataclass(frozen=True, slots=True)
class Peaks:
    """flops: of a 2048 x 2048 x 2048 bf16 matrix product (torch.mm, that is oneDNN).
    bytes_per_s: reading 256 MiB of float32 with torch.sum, more than any cache here holds."""

    flops: float
    bytes_per_s: float

    def best_of(self, other: Peaks) -> Peaks:
        """The higher of each: noise only ever slows a probe."""
        return Peaks(max(self.flops, other.flops), max(self.bytes_per_s, other.bytes_per_s))

    def __str__(self) -> str:
        return f"{self.flops / 1e9:.0f} GFLOP/s (bf16 matrix product), {self.bytes_per_s / 1e9:.1f} GB/s (read)"


def measure_peaks() -> Peaks:
    """Run both probes with the threads torch has now; the first repeat of each is thrown away."""
    a = torch.randn(_MATRIX, _MATRIX).bfloat16()
    b = torch.randn(_MATRIX, _MATRIX).bfloat16()
    data = torch.ones(_READ_FLOATS)
    return Peaks(2.0 * _MATRIX**3 / _fastest(lambda: torch.mm(a, b)), data.nbytes / _fastest(data.sum))


def _fastest(run: Callable[[], object]) -> float:
    def seconds() -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    seconds()
    return min(seconds() for _ in range(_REPEATS))
