"""One kernel launch as a value: what runs on a device is what the ahead-of-time compiler is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """A Triton kernel, its grid and its arguments by name.

    grid: number of programs along each axis. A launch with an empty grid is legal and does nothing.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 1

    def run(self) -> None:
        """Launch on the current stream of the tensors' device."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, num_warps=self.num_warps, num_stages=self.num_stages)

    def compile(self) -> Any:
        """Compile for the active driver's target without launching; returns Triton's compiled kernel."""
        return self.kernel.warmup(
            grid=self.grid, **self.arguments, num_warps=self.num_warps, num_stages=self.num_stages
        )
