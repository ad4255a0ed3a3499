"""A stranger in a process of its own: how long health takes, and how long a stream stands still."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.client import AsyncClient

_HEALTH_EVERY_S = 0.05
_STORY_TOKENS = 1500


@dataclass(slots=True)
class Seen:
    """Seconds of each health answer, and between two messages of one stream."""

    health_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def probe(target: str, token: str, stop: Event, results: Connection) -> None:
    """Watch until `stop` is set; send what was seen."""
    results.send(asyncio.run(_watch(target, token, stop)))


async def _watch(target: str, token: str, stop: Event) -> Seen:
    seen = Seen()
    await asyncio.gather(_ask_health(target, stop, seen), _read_streams(target, token, stop, seen))
    return seen


async def _ask_health(target: str, stop: Event, seen: Seen) -> None:
    async with grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not stop.is_set():
            began = time.monotonic()
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=10)
                if answer.status != health_pb2.HealthCheckResponse.SERVING:
                    seen.failed.append(f"liveness was {answer.status}")
            except grpc.aio.AioRpcError as error:
                seen.failed.append(f"liveness: {error.code().name}")
            seen.health_s.append(time.monotonic() - began)
            await asyncio.sleep(_HEALTH_EVERY_S)


async def _read_streams(target: str, token: str, stop: Event, seen: Seen) -> None:
    async with AsyncClient(target, token=token, tenant="gold", max_attempts=50) as client:
        while not stop.is_set():
            last: float | None = None
            stream = client.generate("Once upon a time", max_tokens=_STORY_TOKENS, ignore_eos=True, temperature=0)
            with contextlib.closing(stream):
                async for _ in stream:
                    now = time.monotonic()
                    if last is not None:
                        seen.gaps_s.append(now - last)
                    last = now
                    if stop.is_set():
                        return
