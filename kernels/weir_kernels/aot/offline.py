"""A Triton driver for a chip this machine does not have: kernels compile for its target and cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import triton
from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


class OfflineDriver:
    """Answers what Triton asks before it launches; each architecture counts as a device of its own."""

    def __init__(self, arch: str) -> None:
        self._arch = arch

    def get_current_device(self) -> str:
        return self._arch

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self._arch]


@contextmanager
def compiling_for(arch: str) -> Iterator[None]:
    """Inside, Triton compiles for `arch` (a key of TARGETS)."""
    config = triton.runtime.driver
    before = config._active
    config.set_active(OfflineDriver(arch))
    try:
        yield
    finally:
        config._active = before
