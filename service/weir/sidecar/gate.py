"""The readiness gate: keeps a pod whose queue is too long out of the Services for a while. Fails open."""

from __future__ import annotations

from weir.sidecar.engine_link import EngineView

# Looks in a row that must agree before the gate closes.
LOOKS_TO_CLOSE = 3
# The gate opens when the wait is this share of the one that closes it.
OPEN_SHARE = 0.5


class KvReadyGate:
    """Open unless the engine itself says that new work would wait too long; never closed for long."""

    def __init__(self, max_wait_s: float, max_closed_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._max_closed_s = max_closed_s
        self._looks = 0
        self._closed_at: float | None = None
        self._open_until = float("-inf")
        self.why = "nothing speaks against it"

    @property
    def is_open(self) -> bool:
        """Whether the pod is ready as far as its queue goes; `why` says why it last changed."""
        return self._closed_at is None

    def update(self, view: EngineView | None, now: float) -> bool:
        """Take a look; whether the gate is open. `view` None: unknown, and so open."""
        if view is None:
            self._open("the engine does not answer")
        elif self._closed_at is None:
            self._looks = self._looks + 1 if view.estimated_wait_s > self._max_wait_s else 0
            if self._looks >= LOOKS_TO_CLOSE and now >= self._open_until:
                self._closed_at = now
                self.why = f"new work would wait {view.estimated_wait_s:.1f} s, more than {self._max_wait_s:.1f} s"
        elif view.estimated_wait_s <= self._max_wait_s * OPEN_SHARE:
            self._open(f"new work would wait {view.estimated_wait_s:.1f} s")
        elif now - self._closed_at >= self._max_closed_s:
            # The pool may be saturated as a whole; being out of it must not become the normal state.
            self._open(f"it was closed for {now - self._closed_at:.0f} s, the longest allowed")
            self._open_until = now + self._max_closed_s
        return self.is_open

    def _open(self, why: str) -> None:
        if self._closed_at is not None:
            self.why = why
        self._closed_at = None
        self._looks = 0
