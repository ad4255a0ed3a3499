"""When to call again: exactly when the server says so, a bounded number of times, within the caller's timeout."""

from __future__ import annotations

import time
from collections.abc import Callable

from weir.client.errors import WeirError


class Attempts:
    """The attempts of one call. Only calls that got no message back may be attempted again."""

    def __init__(self, max_attempts: int, timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = max_attempts - 1
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s

    def timeout_s(self) -> float | None:
        """What is left of the caller's timeout, for the next attempt; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def pause_s(self, error: WeirError) -> float:
        """How long to wait before the next attempt. Raises `error` if there must be none."""
        pause_s, left_s = error.retry_after_s, self.timeout_s()
        if pause_s is None or self._left <= 0 or (left_s is not None and left_s <= pause_s):
            raise error
        self._left -= 1
        return pause_s
