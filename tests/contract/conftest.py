"""A server on a free loopback port, over the fake engine; one for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from weir.client import AsyncClient
from weir.config import EngineSettings, ServerSettings, Settings
from weir.server.app import App

from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer

SETTINGS = Settings(
    engine=EngineSettings(stall_timeout_s=60.0),
    server=ServerSettings(host="127.0.0.1", port=0, admin_address="127.0.0.1:0", drain_timeout_s=5.0),
)


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
async def loading(engine: FakeEngine, tokenizer: ByteTokenizer) -> AsyncIterator[App]:
    """A server whose model is still loading."""
    app = App(SETTINGS, engine, tokenizer)
    await app.start()
    yield app
    engine.admitting.set()
    engine.decoding.set()
    tokenizer.gate.set()
    app.request_stop()
    app.request_stop()
    await app.shut_down()


@pytest.fixture
async def app(loading: App, engine: FakeEngine) -> App:
    """A server that is ready."""
    engine.load()
    await loading.lifecycle.changed(0, timeout_s=5)
    return loading


@pytest.fixture
async def channel(loading: App) -> AsyncIterator[grpc.aio.Channel]:
    """A plain channel: what any gRPC client has."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{loading.port}") as channel:
        yield channel


@pytest.fixture
async def admin_channel(loading: App) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the admin port."""
    async with grpc.aio.insecure_channel(loading.admin_target) as channel:
        yield channel


@pytest.fixture
async def client(app: App) -> AsyncIterator[AsyncClient]:
    """The Python client, which never retries unless a test says so."""
    async with AsyncClient(f"127.0.0.1:{app.port}", max_attempts=1) as client:
        yield client
