"""A server of four methods, one of each kind, behind TLS and tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.config import ServerSettings

Serve = Callable[[ServerSettings], Awaitable[int]]
METHODS = {
    "/test.Echo/UnaryUnary": (False, False),
    "/test.Echo/UnaryStream": (False, True),
    "/test.Echo/StreamUnary": (True, False),
    "/test.Echo/StreamStream": (True, True),
}


class Health(health_pb2_grpc.HealthServicer):
    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status="SERVING")


class Echo(grpc.GenericRpcHandler):
    """Four methods, one of each arity, that answer with `hello`."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method not in METHODS:
            return None
        _, streams = METHODS[details.method]

        async def one(request: object, context: grpc.aio.ServicerContext) -> bytes:
            return b"hello"

        async def many(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
            yield b"hello"

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[METHODS[details.method]]
        return make(many if streams else one)


def replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.rename(path)


async def ask(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    answer: bytes = await channel.unary_unary("/test.Echo/UnaryUnary")(b"", metadata=metadata, timeout=10)
    return answer


def call(port: int, method: str, metadata: tuple[tuple[str, str], ...]) -> list[bytes]:
    """Call a method of any of the four kinds and return every answer.

    With the blocking client, which reports the status that the server sent. The asyncio one reports INTERNAL
    when a server refuses a call while one of its streamed requests is still on the way.
    """
    sends, receives = METHODS[method]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        make = getattr(channel, f"{'stream' if sends else 'unary'}_{'stream' if receives else 'unary'}")
        answer = make(method)(iter([b""]) if sends else b"", metadata=metadata, timeout=10)
        return list(answer) if receives else [answer]


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]
