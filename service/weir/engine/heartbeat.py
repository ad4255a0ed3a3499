"""Whether the engine makes progress: shared memory, so that reading it needs no answer from the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.context import SpawnContext


@dataclass(frozen=True, slots=True)
class Progress:
    """The heartbeat: whether the engine has work, and how long ago it last showed progress on it."""

    busy: bool
    step_age_s: float


class Heartbeat:
    """Shared memory: when the step that runs now began; 0 while the engine is idle."""

    def __init__(self, context: SpawnContext) -> None:
        self._began = context.RawValue("d", 0.0)

    def beat(self) -> None:
        """A step begins."""
        self._began.value = time.monotonic()

    def rest(self) -> None:
        """The engine has nothing to do."""
        self._began.value = 0.0

    def read(self) -> Progress:
        """What the other process last said."""
        began = self._began.value
        return Progress(began > 0.0, time.monotonic() - began if began > 0.0 else 0.0)
