"""Output that its clients have not taken: counted for each call, each connection and the server, and bounded.

An engine computes faster than a client may read, and a client may not read at all. What waits is memory that no KV
budget knows, so it has bounds of its own. A stream whose reader falls too far behind, or takes nothing for too long, is
cut. When all calls together hold too much, those that stand still go first, of the connection that holds most; and
while nothing more can be cut, new calls are refused. A connection that does not even read how its calls ended gets no
new ones, and is closed in the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

from weir.engine.errors import RequestError, SlowReaderError, UnavailableError
from weir.server.connections import close_connections

# A write that takes longer waits for its reader.
STALLED_AFTER_S = 1.0
# Messages of streams are no larger: it is what gRPC still holds of a stream that was cut, until its client reads.
MAX_STREAM_MESSAGE_BYTES = 64 * 1024
# A call itself, in gRPC and here, besides its messages.
CALL_BYTES = 16 * 1024
FULL_RETRY_S = 1.0
_LONGEST_TICK_S = 1.0

_log = logging.getLogger(__name__)

Interrupt = Callable[[RequestError], None]


@dataclass(slots=True, eq=False)
class _Connection:
    """The calls of one peer that gRPC has not let go of; a peer is an address with a port, so one connection."""

    calls: int = 0
    generating: int = 0
    bytes: int = 0
    unread_bytes: int = 0  # of calls that ended a while ago, as of the last look


@dataclass(slots=True, eq=False)
class Backlog:
    """What one call holds. `interrupt` ends a stream; None: the call is unary, and bounded by the message limit."""

    _owner: Backlogs
    _connection: _Connection
    peer: str
    interrupt: Interrupt | None
    generates: bool
    bytes: int = 0
    exempt_bytes: int = 0
    writing: Message | None = None
    writing_since: float = 0.0
    was_cut: bool = False
    ended_at: float | None = None

    def add(self, num_bytes: int, exempt_bytes: int = 0) -> None:
        """So much more is held, or less if negative; see `weir.engine.unread.Meter`. May cut the stream."""
        self.exempt_bytes += exempt_bytes
        self._change(num_bytes)
        if num_bytes > 0 and self.can_be_cut():
            self._owner._check_stream(self)

    def write(self, message: Message) -> None:
        """A message is given to gRPC; `written` says that it is on its way to the client."""
        self.writing, self.writing_since = message, time.monotonic()

    def written(self) -> None:
        """The reader had room for the message."""
        self.writing = None

    def end(self) -> None:
        """The call has its status. What waited is gone; a message that was being written is in gRPC's hands."""
        if self.interrupt is not None:
            self._change((0 if self.writing is None else self.writing.ByteSize()) - self.bytes)
        self._change(CALL_BYTES)
        self.writing = None
        self.ended_at = time.monotonic()
        self._connection.generating -= self.generates

    def close(self) -> None:
        """gRPC has let go of the call too."""
        self._change(-self.bytes)
        self._owner._forget(self)

    def can_be_cut(self) -> bool:
        """Whether it is a stream that goes on."""
        return self.interrupt is not None and not self.was_cut and self.ended_at is None

    def waited_s(self, now: float) -> float:
        """How long the message that is being written has waited for its reader."""
        return 0.0 if self.writing is None else now - self.writing_since

    def _change(self, num_bytes: int) -> None:
        self.bytes += num_bytes
        self._connection.bytes += num_bytes
        self._owner.bytes += num_bytes


class Backlogs:
    """The backlogs of all calls. One owner of the sums; lives on the event loop."""

    def __init__(self, max_stream_bytes: int, max_bytes: int, unread_timeout_s: float) -> None:
        self._max_stream_bytes = max_stream_bytes
        self._max_bytes = max_bytes
        self._unread_timeout_s = unread_timeout_s
        self._calls: set[Backlog] = set()
        self._connections: dict[str, _Connection] = {}
        self.bytes = 0

    def check(self, peer: str) -> None:
        """Raise SlowReaderError for a connection that leaves its ended calls unread, UnavailableError when full."""
        connection = self._connections.get(peer)
        if connection is not None and connection.unread_bytes > self._max_stream_bytes:
            raise SlowReaderError("this connection does not read how its calls ended", connection.unread_bytes)
        if self.bytes >= self._max_bytes:
            raise UnavailableError("OUTPUT_BUFFER_FULL", FULL_RETRY_S)

    @contextmanager
    def open(
        self, context: grpc.aio.ServicerContext, interrupt: Interrupt | None = None, generates: bool = True
    ) -> Iterator[Backlog]:
        """The backlog of a call while it is served, and from then on of what gRPC still holds of it."""
        peer = context.peer()
        connection = self._connections.setdefault(peer, _Connection())
        connection.calls += 1
        connection.generating += generates
        backlog = Backlog(self, connection, peer, interrupt, generates)
        self._calls.add(backlog)
        context.add_done_callback(lambda _: backlog.close())
        try:
            yield backlog
        finally:
            backlog.end()

    async def watch(self) -> None:
        """Cut what is too old or too much, and close connections that read nothing. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(_LONGEST_TICK_S, self._unread_timeout_s / 4))
            now = time.monotonic()
            for backlog in [b for b in self._calls if b.can_be_cut() and b.waited_s(now) > self._unread_timeout_s]:
                self._cut(backlog, f"nothing was read for {self._unread_timeout_s:g} s")
            if self.bytes > self._max_bytes:
                self._cut_largest(now)
            self._count_unread(now)
            self._close_stuck(now)

    def _check_stream(self, backlog: Backlog) -> None:
        if backlog.bytes - backlog.exempt_bytes > self._max_stream_bytes:
            self._cut(backlog, f"more than {self._max_stream_bytes} bytes wait to be read")

    def _cut_largest(self, now: float) -> None:
        stalled = [b for b in self._calls if b.can_be_cut() and b.waited_s(now) > STALLED_AFTER_S]
        stalled.sort(key=lambda b: (b._connection.bytes, b.bytes), reverse=True)
        too_much = self.bytes - self._max_bytes
        for backlog in stalled:
            if too_much <= 0:
                return
            too_much -= backlog.bytes
            self._cut(backlog, f"all calls hold more than {self._max_bytes} bytes, and this one stands still")

    def _count_unread(self, now: float) -> None:
        for connection in self._connections.values():
            connection.unread_bytes = 0
        for backlog in self._calls:
            if backlog.ended_at is not None and now - backlog.ended_at > STALLED_AFTER_S:
                backlog._connection.unread_bytes += backlog.bytes

    def _close_stuck(self, now: float) -> None:
        """A call whose status is not taken stays in gRPC for as long as its connection does.

        A connection that generates nothing else is closed for that; one that does may be a proxy's, and stays.
        """
        stuck = {
            backlog.peer
            for backlog in self._calls
            if backlog.ended_at is not None
            and now - backlog.ended_at > self._unread_timeout_s
            and not backlog._connection.generating
        }
        if stuck and close_connections(stuck):
            _log.info("connections closed: they do not read how their calls ended", extra={"peers": sorted(stuck)[:8]})

    def _cut(self, backlog: Backlog, why: str) -> None:
        assert backlog.interrupt is not None, "only streams are cut"
        backlog.was_cut = True
        _log.info("stream cut", extra={"why": why, "bytes": backlog.bytes, "peer": backlog.peer})
        backlog.interrupt(SlowReaderError(why, backlog.bytes))

    def _forget(self, backlog: Backlog) -> None:
        self._calls.remove(backlog)
        backlog._connection.calls -= 1
        if not backlog._connection.calls:
            del self._connections[backlog.peer]
