"""grpc.aio's server, but for one fault: a call whose path is not UTF-8 would end it, and every other call with it.

gRPC takes calls of the methods that it knows, and all other calls, apart from each other. It decodes the path of the
others in the loop that takes calls, where an exception ends the server for everybody (grpcio 1.85). Every method here
is one that gRPC knows, so the others are refused before that, whatever their path is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

_UNKNOWN = "Method not found!"


def make_server(interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]) -> Any:
    """A grpc.aio.Server. Every method must be added to it by `add_registered_method_handlers`, as stubs do."""
    return _Server(None, (), interceptors, options, None, None)


class _Core(cygrpc.AioServer):  # type: ignore[misc]
    """What takes the calls from gRPC's core."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any) -> None:
        super().__init__(loop, *arguments)
        self._of_calls = loop
        self._refusals: set[asyncio.Task[None]] = set()

    async def _request_call(self) -> NoReturn:
        """gRPC's own gives the next call of a method that it doesn't know; this one refuses them, and gives none."""
        while True:
            call = await super()._request_call()
            refusal = self._of_calls.create_task(_refuse(call, self._of_calls))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)


class _Server(_server.Server):  # type: ignore[misc]
    """grpc.aio.Server over that core."""

    def __init__(self, *arguments: Any) -> None:
        make, cygrpc.AioServer = cygrpc.AioServer, _Core
        try:
            super().__init__(*arguments)
        finally:
            cygrpc.AioServer = make


async def _refuse(call: Any, loop: asyncio.AbstractEventLoop) -> None:
    context = cygrpc._ServicerContext(call, None, None, loop)
    # abort raises once it has sent, and otherwise when the caller has gone.
    with contextlib.suppress(grpc.aio.BaseError):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _UNKNOWN)
