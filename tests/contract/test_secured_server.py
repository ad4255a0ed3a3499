"""A server that asks for tokens: who gets in, and that probes need none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.client import AsyncClient, ServerError, UnauthenticatedError
from weir.config import ServerSettings, Settings
from weir.server.app import App

from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer


@pytest.fixture
async def guarded(engine: FakeEngine, tokenizer: ByteTokenizer, tmp_path: Path) -> AsyncIterator[App]:
    """A server with one known token and a port for probes."""
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret\n")
    server = ServerSettings(
        host="127.0.0.1", port=0, admin_address="127.0.0.1:0", auth_tokens_file=str(tokens), health_port=0
    )
    app = App(Settings(server=server), engine, tokenizer)
    await app.start()
    engine.load()
    await app.lifecycle.changed(0, timeout_s=5)
    yield app
    await app.shut_down()


async def test_a_known_token_gets_in_and_lets_nobody_else_in_after_it(guarded: App) -> None:
    target = f"127.0.0.1:{guarded.port}"
    async with AsyncClient(target, token="s3cret") as known:
        assert (await known.complete("x", max_tokens=1)).text == "x"
    for wrong, said in (("", "a token is needed, and none was given"), ("s3cret2", "the token was refused")):
        async with AsyncClient(target, token=wrong) as stranger:
            with pytest.raises(UnauthenticatedError, match=said) as caught:
                await stranger.complete("x", max_tokens=1)
            assert caught.value.code == "UNAUTHENTICATED"
            assert caught.value.request_id


async def test_health_needs_no_token_and_has_a_port_of_its_own(guarded: App) -> None:
    for port in (guarded.port, guarded.health_port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="readiness"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_health_port_serves_nothing_else(guarded: App) -> None:
    async with AsyncClient(f"127.0.0.1:{guarded.health_port}", token="s3cret", max_attempts=1) as client:
        with pytest.raises(ServerError) as caught:
            await client.model()
        assert caught.value.code == "UNIMPLEMENTED"
