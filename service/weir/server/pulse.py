"""Whether the engine makes progress: what health tells, and what new calls are refused by."""

from __future__ import annotations

from weir.engine.errors import UnavailableError
from weir.server.engine_api import Engine

# Another replica can answer at once; here a restart is near.
STALLED_RETRY_S = 1.0


class Pulse:
    """Reads the engine's heartbeat, from memory."""

    def __init__(self, engine: Engine, stall_timeout_s: float) -> None:
        self._engine = engine
        self._stall_timeout_s = stall_timeout_s

    def beats(self) -> bool:
        """Whether the loaded engine lives, and has nothing to do or does it."""
        if self._engine.failed.done():
            return False
        progress = self._engine.progress()
        return not progress.busy or progress.step_age_s <= self._stall_timeout_s

    def check(self) -> None:
        """Raise UnavailableError while the engine hangs; one that has died is told by its own error."""
        if not self._engine.failed.done() and not self.beats():
            raise UnavailableError("ENGINE_STALLED", STALLED_RETRY_S)
