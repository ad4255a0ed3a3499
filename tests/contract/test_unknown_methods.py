"""Calls of methods that there are not: refused, and nobody else notices, whatever their path is."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.client import AsyncClient
from weir.server.app import App

from tests.contract.decode import eventually, refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.raw_client import RawClient

# A path is bytes on the wire; in a traceback it was the end of the server, and of every call in it.
PATHS = [
    b"/\xff",
    b"/weir.v1.InferenceService/\xc3\x28",
    b"\xed\xa0\x80",
    b"x",
    b"/weir.v1.InferenceService/Nothing",
]


@pytest.mark.parametrize("path", PATHS, ids=repr)
async def test_a_path_of_any_bytes_is_refused_and_a_stream_beside_it_goes_on(
    path: bytes, app: App, client: AsyncClient, engine: FakeEngine
) -> None:
    engine.decoding.clear()
    stream = client.generate("abc", max_tokens=3)
    async with RawClient(app.port) as stranger:
        call = stranger.call(path, b"")  # type: ignore[arg-type]
        await eventually(lambda: call in stranger.ended or stranger.closed.is_set())
        if not stranger.closed.is_set():
            assert stranger.headers[call]["grpc-status"] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])
    engine.decoding.set()
    assert "".join([delta.text async for delta in stream]) == "abc"
    assert (await client.complete("ok", max_tokens=2)).text == "ok"


async def test_the_admin_port_lives_on_too(app: App) -> None:
    async with RawClient(int(app.admin_target.rpartition(":")[2])) as stranger:
        call = stranger.call(b"/\xff", b"")  # type: ignore[arg-type]
        await eventually(lambda: call in stranger.ended)
    async with grpc.aio.insecure_channel(app.admin_target) as channel:
        request = health_pb2.HealthCheckRequest(service="liveness")
        assert (await health_pb2_grpc.HealthStub(channel).Check(request)).status


async def test_a_method_that_is_not_there_is_unimplemented(app: App, channel: grpc.aio.Channel) -> None:
    for name in ("/weir.v1.InferenceService/Nothing", "/nothing.at.All/X", "/weir.v1.AdminService/Drain"):
        assert (await refusal(channel.unary_unary(name)(b""))).code is grpc.StatusCode.UNIMPLEMENTED


async def test_thousands_of_unknown_calls_hold_nothing(
    app: App, client: AsyncClient, channel: grpc.aio.Channel
) -> None:
    for _ in range(1000):
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/weir.v1.InferenceService/Nothing")(b"")
    core = app._server._server
    await eventually(lambda: not core._refusals)
    assert (await client.complete("ok", max_tokens=2)).text == "ok"
