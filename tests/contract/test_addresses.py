"""Every gRPC port answers over IPv4 and IPv6, and an address of one family is that address only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.config import ServerSettings, Settings
from weir.server.app import App

from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer

Start = Callable[..., Awaitable[App]]
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    apps: list[App] = []

    async def started(**settings: object) -> App:
        # The health port serves beside tokens, too.
        tokens = tmp_path / "tokens"
        tokens.write_text("s3cret\n")
        server = {"port": 0, "health_port": 0, "admin_address": f"unix:{tmp_path / 'admin.sock'}"} | settings
        secured = ServerSettings.model_validate(server | {"auth_tokens_file": str(tokens)})
        engine = FakeEngine()
        app = App(Settings(server=secured), engine, ByteTokenizer())
        await app.start()
        apps.append(app)
        engine.load()
        await app.lifecycle.changed(0, timeout_s=5)
        return app

    yield started
    for app in apps:
        app.request_stop()
        app.request_stop()
        await app.shut_down()


async def health(target: str) -> object:
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5.0)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return reply.status


async def test_by_default_every_port_answers_over_both_families(start: Start) -> None:
    app = await start()
    for port in (app.port, app.health_port):
        for address in ("127.0.0.1", "[::1]"):
            assert await health(f"{address}:{port}") == SERVING


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_address_of_ipv6_may_stand_in_brackets_and_is_that_address_only(start: Start, host: str) -> None:
    app = await start(host=host)
    assert await health(f"[::1]:{app.port}") == SERVING
    assert await health(f"127.0.0.1:{app.port}") == grpc.StatusCode.UNAVAILABLE


async def test_the_admin_port_may_be_the_loopback_of_ipv6(start: Start) -> None:
    app = await start(admin_address="[::1]:0")
    assert app.admin_target.startswith("[::1]:")
    assert await health(app.admin_target) == SERVING
