"""The metrics port: HTTP/1.1 GET /metrics on the event loop, answered from memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

MAX_REQUEST_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
IDLE_TIMEOUT_S = 120.0

Render = Callable[[str], tuple[bytes, str]]


class MetricsServer:
    """Serves `render(accept) -> (body, content type)` to any number of scrapers that keep their connection."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one for `port` 0. Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=MAX_REQUEST_BYTES)
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
        self._connections.add(task)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                await _respond(writer, HTTPStatus.SERVICE_UNAVAILABLE, close=True)
            else:
                await self._serve(reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the scraper went away
        except asyncio.CancelledError:
            # Raised by stop() alone; asyncio would log a cancelled connection handler as an error.
            pass
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive = True
        while keep_alive:
            try:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                return await _respond(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, close=True)
            request = _parse(head)
            if request is None:
                return await _respond(writer, HTTPStatus.BAD_REQUEST, close=True)
            if request.method not in ("GET", "HEAD"):
                # The body of another method is not read, so the connection cannot go on.
                return await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED, close=True)
            keep_alive = request.keep_alive
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
