"""When to try again after a fault."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 1.0
MOST_S = 60.0


class Backoff:
    """Exponential, with jitter over the upper half, and at least as long as the server asked for."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._faults = 0
        self.until = float("-inf")

    def ready(self, now: float) -> bool:
        """Whether it is time to try."""
        return now >= self.until

    def failed(self, now: float, at_least_s: float = 0.0, most_s: float = MOST_S) -> float:
        """Count a fault; the seconds to wait, `most_s` at most unless the server asked for more."""
        full = min(most_s, FIRST_S * 2.0 ** min(self._faults, 10))
        self._faults += 1
        wait = max(at_least_s, full * (0.5 + 0.5 * self._draw()))
        self.until = now + wait
        return wait

    def succeeded(self) -> None:
        """Forget all faults."""
        self._faults = 0
        self.until = float("-inf")
