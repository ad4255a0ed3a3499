"""The metrics port: HTTP/1.1 GET /metrics on the event loop, answered from memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from weir.listening import listening_socket

MAX_REQUEST_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
# From the connection, or the first byte after a pause, to the end of the request's head; and between requests.
HEAD_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 120.0

Render = Callable[[str], tuple[bytes, str]]


class MetricsServer:
    """Serves `render(accept) -> (body, content type)` to scrapers that keep their connection.

    When there are too many, the one that was served longest ago makes room: connections that ask for nothing cannot
    keep a scraper out.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], None] = {}  # in the order of their last request

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one for `port` 0. Raises OSError when it is taken."""
        listener = listening_socket(host, port)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=MAX_REQUEST_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        if len(self._connections) > MAX_CONNECTIONS:
            longest_idle = next(iter(self._connections))
            del self._connections[longest_idle]
            longest_idle.cancel()
        try:
            await self._serve(task, reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the scraper went away, or never asked
        except asyncio.CancelledError:
            # Raised here alone, or by stop(); asyncio would log a cancelled connection handler as an error.
            pass
        finally:
            self._connections.pop(task, None)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        keep_alive, pause_s = True, 0.0
        while keep_alive:
            try:
                head = await _head(reader, pause_s)
            except asyncio.LimitOverrunError:
                return await _respond(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, close=True)
            request = _parse(head)
            if request is None:
                return await _respond(writer, HTTPStatus.BAD_REQUEST, close=True)
            if request.method not in ("GET", "HEAD"):
                # The body of another method is not read, so the connection cannot go on.
                return await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED, close=True)
            keep_alive, pause_s = request.keep_alive, IDLE_TIMEOUT_S
            self._connections.pop(task, None)
            self._connections[task] = None
            bare = request.method == "HEAD"
            if request.path != "/metrics":
                await _respond(writer, HTTPStatus.NOT_FOUND, not keep_alive, bare=bare)
            else:
                body, content_type = self._render(request.accept)
                await _respond(writer, HTTPStatus.OK, not keep_alive, body, content_type, bare)
        return None


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    accept: str
    keep_alive: bool


async def _head(reader: asyncio.StreamReader, pause_s: float) -> bytes:
    """The next request's lines, after a pause of so long at most. Raises TimeoutError."""
    first = b""
    if pause_s:
        async with asyncio.timeout(pause_s):
            first = await reader.readexactly(1)
    async with asyncio.timeout(HEAD_TIMEOUT_S):
        return first + await reader.readuntil(b"\r\n\r\n")


def _parse(head: bytes) -> _Request | None:
    request_line, *lines = head.decode("latin-1").split("\r\n")
    parts = request_line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        return None
    method, target, version = parts
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return _Request(method, target.partition("?")[0], headers.get("accept", ""), keep_alive)


async def _respond(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    close: bool,
    body: bytes | None = None,
    content_type: str = "text/plain; charset=utf-8",
    bare: bool = False,
) -> None:
    content = f"{status.phrase}\n".encode() if body is None else body
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(content)}",
        f"Connection: {'close' if close else 'keep-alive'}",
    )
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if bare else content))
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        await writer.drain()
