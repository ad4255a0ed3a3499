"""Streams that tell a state for as long as the client likes: how many there may be, how often they speak, to whom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from weir.server.backlog import Backlogs
from weir.server.errors import StatusError
from weir.server.sending import begin_stream, write_in_time

MAX_PER_CONNECTION = 32
RETRY_S = 5.0
LONGEST_S = 86_400.0

Tell = Callable[[Any], Awaitable[None]]


class Watches:
    """Counts open watches, of the server and of each connection; bounded where bounds are given."""

    def __init__(
        self,
        backlogs: Backlogs,
        unread_timeout_s: float,
        max_watches: float = math.inf,
        max_per_connection: float = math.inf,
    ) -> None:
        self._backlogs = backlogs
        self._unread_timeout_s = unread_timeout_s
        self._max_watches = max_watches
        self._max_per_connection = max_per_connection
        self._by_peer: Counter[str] = Counter()
        self._total = 0

    @asynccontextmanager
    async def open(self, context: grpc.aio.ServicerContext) -> AsyncIterator[Tell]:
        """One more, while the block runs; what it yields sends a message.

        Raises StatusError (RESOURCE_EXHAUSTED) when there are too many, SlowReaderError when a message is not read.
        """
        peer = context.peer()
        if self._total >= self._max_watches:
            raise _too_many(f"{self._total} watches are open, and this server serves no more")
        if self._by_peer[peer] >= self._max_per_connection:
            raise _too_many(f"{self._by_peer[peer]} watches are open on this connection, and it may have no more")
        self._by_peer[peer] += 1
        self._total += 1
        try:
            with self._backlogs.open(context, generates=False):
                await begin_stream(context)
                yield lambda message: write_in_time(context, message, self._unread_timeout_s)
        finally:
            self._total -= 1
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]


def seconds_within(asked_s: float, lowest_s: float, default_s: float) -> float:
    """A time that a client asked for, made one that can be waited; 0, or no number at all, is the default."""
    if asked_s == 0 or math.isnan(asked_s):
        return default_s
    return min(max(asked_s, lowest_s), LONGEST_S)


def _too_many(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, reason="TOO_MANY_WATCHES", retry_after_s=RETRY_S)
