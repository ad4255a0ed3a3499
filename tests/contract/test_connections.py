"""Connections: how many there are, how long they may take to begin, do nothing, or hang; and that probes get theirs."""

from __future__ import annotations

import asyncio
import logging
import resource

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.server import options
from weir.server.descriptors import FEWEST_CONNECTIONS, KEPT_BACK, connections_within, raise_limit
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.contract.observed_app import observed_app
from tests.contract.raw_client import RawClient

COMPLETE = "/weir.v1.InferenceService/Complete"
REQUEST = pb.CompleteRequest(prompt=pb.Prompt(text="ab")).SerializeToString()


async def answers(client: RawClient) -> bool:
    """Whether a call on this connection is answered."""
    stream = client.call(COMPLETE, REQUEST)
    await eventually(lambda: stream in client.ended or client.closed.is_set())
    return stream in client.ended


async def test_beyond_the_bound_new_connections_are_closed_and_health_has_its_own(engine: FakeEngine) -> None:
    async with observed_app(engine, max_connections=3, health_port=0) as server:
        clients = [RawClient(server.app.port) for _ in range(3)]
        for client in clients:
            await client.__aenter__()
            assert await answers(client)
        async with RawClient(server.app.port) as further:
            assert not await answers(further)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.app.health_port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert (await stub.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == 1
        # A place that is given back is taken by the next.
        await clients[0].__aexit__()
        async with asyncio.timeout(10):
            while True:
                async with RawClient(server.app.port) as again:
                    if await answers(again):
                        break
                await asyncio.sleep(0.05)
        for client in clients[1:]:
            assert await answers(client)
            await client.__aexit__()


async def test_a_connection_is_told_how_many_calls_it_may_have(engine: FakeEngine) -> None:
    async with observed_app(engine, max_concurrent_streams=2) as server, RawClient(server.app.port) as client:
        await eventually(lambda: client._connection.remote_settings.max_concurrent_streams == 2)


async def test_a_connection_that_never_says_http2_is_closed(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "HANDSHAKE_TIMEOUT_MS", 300)
    async with observed_app(engine) as server:
        for beginning in (b"", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.app.port)
            writer.write(beginning)
            async with asyncio.timeout(10):
                while await reader.read(65536):
                    pass
            writer.close()
        async with RawClient(server.app.port) as client:
            assert await answers(client)


async def test_a_connection_without_a_call_is_closed_after_a_while_and_one_with_a_call_is_not(
    engine: FakeEngine,
) -> None:
    engine.decoding.clear()
    async with (
        observed_app(engine, max_connection_idle_s=0.3) as server,
        RawClient(server.app.port) as idle,
        RawClient(server.app.port) as busy,
    ):
        stream = busy.call(COMPLETE, REQUEST)
        await eventually(lambda: idle.goaway is not None)
        await asyncio.sleep(0.5)
        engine.decoding.set()
        await eventually(lambda: stream in busy.ended)
        assert busy.headers[stream]["grpc-status"] == "0"


async def test_a_peer_that_hangs_gives_back_what_it_holds(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel goes on taking bytes, so only the missing answer to a ping tells."""
    monkeypatch.setattr(options, "KEEPALIVE_TIME_MS", 1000)
    monkeypatch.setattr(options, "KEEPALIVE_TIMEOUT_MS", 300)
    engine.decoding.clear()
    async with observed_app(engine) as server, RawClient(server.app.port) as hung:
        hung.call(COMPLETE, REQUEST)
        await eventually(lambda: len(engine.streams) == 1)
        hung._reading.cancel()
        await eventually(lambda: len(engine.streams) == 0, timeout_s=20)
        await eventually(lambda: sum(server.statuses().values()) == 1)
        assert server.statuses() == {"CANCELLED": 1}


def test_clients_never_hold_all_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    assert connections_within(2048, descriptors=2**20) == 2048
    with caplog.at_level(logging.WARNING):
        assert connections_within(2048, descriptors=1024) == 1024 - KEPT_BACK
        assert connections_within(2048, descriptors=100) == FEWEST_CONNECTIONS
    assert len(caplog.records) == 2


def test_the_limit_on_open_files_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        assert raise_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
