"""Fields of the pod that the sidecar keeps: written on change only, not too often, and never against another owner."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

from weir.sidecar.backoff import Backoff

NEVER = float("inf")


class ManagedField:
    """One field: what it should be, what it is known to be, and when it may be written.

    It may be written from `first_at` on, and then at every `interval_s`. Each pod has its own `first_at`: pods that all
    change at once do not all write at once. Safe to use from several threads.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        first_at: float,
        apply: Callable[[str], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.apply = apply
        self._interval_s = interval_s
        self._first_at = first_at
        self._backoff = Backoff(draw)
        self._lock = threading.Lock()
        self._wanted: str | None = None
        self._known: str | None = None
        self._seen_since_begin = False
        self._slot_at = NEVER
        self._in_hurry = False

    def want(self, value: str, now: float) -> bool:
        """Decide the value. Whether that is a reason to write where there was none."""
        with self._lock:
            self._wanted = value
            return self._compare(now)

    def saw(self, value: str, now: float) -> bool:
        """The API server says what it is. Whether that is a reason to write where there was none."""
        with self._lock:
            self._known = value
            self._seen_since_begin = True
            return self._compare(now)

    def due_at(self) -> float:
        """When it may be written; NEVER while it is what it should be."""
        with self._lock:
            return max(self._slot_at, self._backoff.until)

    def due(self, now: float) -> str | None:
        """The value to write now, if any."""
        with self._lock:
            return self._wanted if now >= max(self._slot_at, self._backoff.until) else None

    def begin(self) -> None:
        """It is being written."""
        with self._lock:
            self._seen_since_begin = False

    def wrote(self, value: str, now: float) -> None:
        """It was written. What was seen since the write began is newer, or its own change is still to be seen."""
        with self._lock:
            if not self._seen_since_begin:
                self._known = value
            self._slot_at = NEVER
            self._backoff.succeeded()
            self._compare(now)

    def doubt(self, now: float) -> None:
        """Nobody knows whether it was written."""
        with self._lock:
            self._known = None
            self._compare(now)

    def refused(self, now: float, at_least_s: float = 0.0) -> float:
        """It may not be written now: leave it alone for a while, and at least so long. The seconds."""
        self.doubt(now)
        with self._lock:
            return self._backoff.failed(now, at_least_s)

    def hurry(self) -> None:
        """What is to be written from now on waits for nothing."""
        with self._lock:
            self._backoff.succeeded()
            self._in_hurry = True
            if self._slot_at < NEVER:
                self._slot_at = -NEVER

    def _compare(self, now: float) -> bool:
        if self._wanted is None or self._wanted == self._known:
            self._slot_at = NEVER
            return False
        if self._slot_at < NEVER:
            return False
        self._slot_at = self._next_slot(now)
        return True

    def _next_slot(self, now: float) -> float:
        if self._in_hurry:
            return -NEVER
        if now <= self._first_at:
            return self._first_at
        if self._interval_s == 0:
            return now
        return self._first_at + (math.floor((now - self._first_at) / self._interval_s) + 1) * self._interval_s
