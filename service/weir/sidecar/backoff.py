"""When to try again after a fault."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 1.0
MOST_S = 60.0
# A permission that is missing comes back with a change of RBAC, not by asking often.
DENIED_S = 300.0


class Backoff:
    """Exponential, with jitter over the upper half, and at least as long as the server asked for."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._faults = 0
        self.until = float("-inf")

    def ready(self, now: float) -> bool:
        """Whether it is time to try."""
        return now >= self.until

    def failed(self, now: float, at_least_s: float = 0.0) -> float:
        """Count a fault; the seconds to wait."""
        full = min(MOST_S, FIRST_S * 2.0 ** min(self._faults, 10))
        self._faults += 1
        wait = max(at_least_s, full * (0.5 + 0.5 * self._draw()))
        self.until = now + wait
        return wait

    def succeeded(self) -> None:
        """Forget all faults."""
        self._faults = 0
        self.until = float("-inf")
