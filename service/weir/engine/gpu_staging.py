"""Host arrays that reach the device in one copy: pinned, reused, and never overwritten while a copy may read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Shape = tuple[int, ...]
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the two host buffers: the arrays to fill, and the event after which they may be filled again."""

    arrays: Mapping[str, npt.NDArray[Any]]
    packed: torch.Tensor
    copied: torch.cuda.Event | None


class Staging:
    """Named arrays at fixed places of one buffer, twice on the host and once on the device.

    Two host buffers: a step can be written while the copy of the one before is still on its way. One device buffer:
    copies and kernels run in stream order, and its addresses never change, as captured graphs need. The last field
    should be the largest: of it, only the rows that a step uses are copied.
    """

    def __init__(self, fields: Mapping[str, tuple[Shape, torch.dtype]], device: torch.device) -> None:
        offsets: dict[str, int] = {}
        size = 0
        for name, (shape, dtype) in fields.items():
            offsets[name] = size
            size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
            self._last_offset, self._last_row_bytes = offsets[name], math.prod(shape[1:]) * dtype.itemsize
        on_gpu = device.type == "cuda"
        self._device_buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        self.tensors = {
            name: _view(self._device_buffer, offsets[name], shape, dtype) for name, (shape, dtype) in fields.items()
        }
        self._slots = []
        for _ in range(2):
            packed = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
            arrays = {name: _view(packed, offsets[name], *fields[name]).numpy() for name in fields}
            self._slots.append(Slot(arrays, packed, _event() if on_gpu else None))
        self._turn = 0

    def next(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """The arrays to fill for the coming step; waits if the copy of two steps ago has not run yet."""
        self._turn ^= 1
        slot = self._slots[self._turn]
        if slot.copied is not None:
            slot.copied.synchronize()
        return slot.arrays

    def upload(self, last_rows: int) -> None:
        """Copy what `next` gave to the device, behind the work already queued there; of the last field, some rows."""
        slot = self._slots[self._turn]
        size = self._last_offset + last_rows * self._last_row_bytes
        self._device_buffer[:size].copy_(slot.packed[:size], non_blocking=True)
        if slot.copied is not None:
            slot.copied.record()


def _view(buffer: torch.Tensor, offset: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    return buffer[offset : offset + size].view(dtype).view(shape)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
