"""Where a server is in its life, and whether it takes new work. One owner; health, drain and watches read it."""

from __future__ import annotations

import asyncio
from enum import Enum

import grpc

from weir.engine.errors import UnavailableError
from weir.server.errors import StatusError

LOADING_RETRY_S = 5.0
DRAINING_RETRY_S = 1.0


class Phase(Enum):
    """LOADING until the model is loaded; READY; DRAINING takes no new work; STOPPING ends watches too."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"


class Lifecycle:
    """LOADING -> READY <-> DRAINING -> STOPPING. Drain while loading is remembered."""

    def __init__(self) -> None:
        self._loaded = False
        self._draining = False
        self._shutting_down = False
        self._stopping = False
        self._changed = asyncio.Event()

    @property
    def phase(self) -> Phase:
        """The phase now."""
        if self._stopping:
            return Phase.STOPPING
        if self._draining:
            return Phase.DRAINING
        return Phase.READY if self._loaded else Phase.LOADING

    def check_ready(self) -> None:
        """Raise UnavailableError unless new work is taken."""
        match self.phase:
            case Phase.LOADING:
                raise UnavailableError("MODEL_LOADING", LOADING_RETRY_S)
            case Phase.DRAINING | Phase.STOPPING:
                raise UnavailableError("DRAINING", DRAINING_RETRY_S)

    def check_loaded(self) -> None:
        """Raise UnavailableError while the model is loading; reading is allowed when draining."""
        if not self._loaded:
            raise UnavailableError("MODEL_LOADING", LOADING_RETRY_S)

    def loaded(self) -> None:
        """The model is loaded."""
        self._loaded = True
        self._notify()

    def drain(self) -> None:
        """Take no new work, until resumed."""
        self._draining = True
        self._notify()

    def resume(self) -> None:
        """Take new work again. Raises StatusError (FAILED_PRECONDITION) when the server is shutting down."""
        if self._shutting_down:
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "the server is shutting down")
        self._draining = False
        self._notify()

    def shut_down(self) -> None:
        """Drain for good."""
        self._shutting_down = True
        self.drain()

    def stop(self) -> None:
        """End every watch: what follows is the end of the process."""
        self._shutting_down = self._draining = self._stopping = True
        self._notify()

    async def changed(self, timeout_s: float) -> None:
        """Wait for the next change of phase, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _notify(self) -> None:
        # Each waiter holds the event that was current when it began to wait, so none misses a change.
        self._changed.set()
        self._changed = asyncio.Event()
