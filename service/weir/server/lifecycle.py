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
    """LOADING -> READY <-> DRAINING -> STOPPING. Drain while loading is remembered. `version` counts the changes."""

    def __init__(self) -> None:
        self._loaded = False
        self._draining = False
        self._shutting_down = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self.version = 0

    @property
    def phase(self) -> Phase:
        """The phase now."""
        if self._stopping.is_set():
            return Phase.STOPPING
        if self._draining:
            return Phase.DRAINING
        return Phase.READY if self._loaded else Phase.LOADING

    @property
    def is_loaded(self) -> bool:
        """Whether the model is loaded, in whichever phase."""
        return self._loaded

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
        self._shutting_down = self._draining = True
        self._stopping.set()
        self._notify()

    async def changed(self, version: int, timeout_s: float) -> None:
        """Wait until `version` is no longer the latest, at most `timeout_s`."""
        if self.version == version:
            await _wait(self._changed, timeout_s)

    async def stopping(self, timeout_s: float) -> bool:
        """Wait for the end, at most `timeout_s`; whether it has come."""
        await _wait(self._stopping, timeout_s)
        return self._stopping.is_set()

    def _notify(self) -> None:
        self.version += 1
        # Each waiter holds the event that was current when it began to wait, so none misses a change.
        self._changed.set()
        self._changed = asyncio.Event()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
