"""Reads a failed call with Google's own classes, independent of the client's decoder; and waits for conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_status import rpc_status


@dataclass(frozen=True)
class Refusal:
    """A failed call: its code, its details by type name, and its trailers."""

    code: grpc.StatusCode
    message: str
    details: dict[str, Any]
    trailers: dict[str, str | bytes]


async def refusal(call: Awaitable[Any]) -> Refusal:
    """Await a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    trailers = dict(error.trailing_metadata() or ())
    status = rpc_status.from_call(error)
    details: dict[str, Message] = {}
    for packed in status.details if status is not None else ():
        kind = packed.TypeName().removeprefix("google.rpc.")
        message = _DETAILS[kind]()
        assert packed.Unpack(message)
        details[kind] = message
    return Refusal(error.code(), error.details() or "", details, trailers)


async def drained(call: Any) -> list[Any]:
    """All messages of a stream."""
    return [message async for message in call]


async def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until a condition holds; fail if it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


def _details() -> dict[str, Any]:
    from google.rpc import error_details_pb2

    return {name: getattr(error_details_pb2, name) for name in ("ErrorInfo", "RetryInfo", "QuotaFailure", "BadRequest")}


_DETAILS = _details()
