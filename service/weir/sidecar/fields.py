"""Fields of the pod that the sidecar keeps: written on change only, not too often, and never against another owner."""

from __future__ import annotations

from collections.abc import Callable


class ManagedField:
    """One field: what it should be, what it is, and when it may be written."""

    def __init__(self, name: str, min_interval_s: float, apply: Callable[[str], None]) -> None:
        self.name = name
        self.apply = apply
        self._min_interval_s = min_interval_s
        self._wanted: str | None = None
        self._written: str | None = None
        self._next_at = float("-inf")

    def want(self, value: str) -> None:
        """Decide the value; a value that was wanted before and never written is forgotten."""
        self._wanted = value

    def due(self, now: float) -> str | None:
        """The value to write now, if any."""
        if self._wanted is None or self._wanted == self._written or now < self._next_at:
            return None
        return self._wanted

    def wrote(self, value: str, now: float) -> None:
        """It was written."""
        self._written = value
        self._next_at = now + self._min_interval_s

    def hurry(self) -> None:
        """The next write is the last: it waits for nothing."""
        self._next_at = float("-inf")

    def hold(self, now: float, seconds: float) -> None:
        """Leave it alone for a while, and take what was written for lost."""
        self._written = None
        self._next_at = now + seconds
