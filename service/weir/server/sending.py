"""What a stream sends, to a client that may not read it or may be gone."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from weir.engine.errors import SlowReaderError

# Headers wait for no window, only for a socket that is full.
_HEADERS_TIMEOUT_S = 1.0


async def begin_stream(context: grpc.aio.ServicerContext) -> None:
    """Send the headers of a stream, apart from its first message and to their end.

    gRPC can give a call a status while a message waits for its reader, but not while headers do: a stream that is cut
    under its first message, or here, would never tell its client.
    """
    headers = asyncio.ensure_future(context.send_initial_metadata(()))
    try:
        await asyncio.shield(headers)
    except asyncio.CancelledError:
        await asyncio.wait({headers}, timeout=_HEADERS_TIMEOUT_S)
        raise


async def write_in_time(context: grpc.aio.ServicerContext, message: Any, timeout_s: float) -> None:
    """Write a message. Raises SlowReaderError when its reader has no room for it in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await context.write(message)
    except TimeoutError:
        raise SlowReaderError(f"nothing was read for {timeout_s:g} s", message.ByteSize()) from None
