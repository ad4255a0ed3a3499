"""The end of the pod's life: keep serving, stop new work, wait for what is in flight, report."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

from weir.sidecar.engine_link import EngineLink, EngineView

# The engine is taken for gone when it misses so many calls in a row; one may be lost to a busy moment.
MISSES_TO_BE_GONE = 2

_log = logging.getLogger(__name__)


class Stage(enum.Enum):
    """How far it is."""

    SERVING = "serving"
    LEAVING = "leaving"
    DRAINING = "draining"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How it ended: `seconds` after the pod began to terminate, with `left` requests last seen in flight."""

    seconds: float
    at_start: int
    left: int
    engine_ended: bool

    def __str__(self) -> str:
        end = "the engine ended" if self.engine_ended else "time is up" if self.left else "done"
        return f"{end} after {self.seconds:.1f} s: {self.at_start} requests in flight at first, {self.left} at last"


class DrainCoordinator:
    """Moves through the stages as time passes; the engine's own handling of SIGTERM does not depend on it."""

    def __init__(self, link: EngineLink, delay_s: float, timeout_s: float) -> None:
        self._link = link
        self._delay_s = delay_s
        self._timeout_s = timeout_s
        self._began_at = 0.0
        self._at_start = 0
        self._left = 0
        self._misses = 0
        self.stage = Stage.SERVING
        self.report: DrainReport | None = None

    def begin(self, now: float) -> None:
        """The pod is being terminated. Of several calls the first counts."""
        if self.stage is Stage.SERVING:
            self._began_at = now
            self.stage = Stage.LEAVING
            _log.info("the pod ends: serving for another %.0f s while its endpoints are taken away", self._delay_s)

    def tick(self, now: float, view: EngineView | None) -> None:
        """Go on."""
        elapsed = now - self._began_at
        if self.stage is Stage.LEAVING and elapsed >= self._delay_s:
            self.stage = Stage.DRAINING
            self._at_start = self._left = view.in_flight if view else 0
            _log.info("draining %d requests in flight", self._left)
        if self.stage is Stage.DRAINING:
            self._drain(elapsed)

    def conclude(self, now: float) -> None:
        """The sidecar itself ends, which it does after the engine: report what is known."""
        if self.stage in (Stage.LEAVING, Stage.DRAINING):
            self._finish(now - self._began_at, engine_ended=True)

    def _drain(self, elapsed: float) -> None:
        left = self._link.drain()
        if left is None:
            self._misses += 1
        else:
            self._misses = 0
            self._left = left
        if left == 0:
            self._finish(elapsed, engine_ended=False)
        elif self._misses >= MISSES_TO_BE_GONE:
            self._finish(elapsed, engine_ended=True)
        elif elapsed >= self._delay_s + self._timeout_s:
            self._finish(elapsed, engine_ended=False)

    def _finish(self, elapsed: float, engine_ended: bool) -> None:
        self.stage = Stage.DONE
        self.report = DrainReport(elapsed, self._at_start, self._left, engine_ended)
        _log.log(logging.WARNING if self._left and not engine_ended else logging.INFO, "drain: %s", self.report)
