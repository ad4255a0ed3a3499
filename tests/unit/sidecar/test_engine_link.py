"""The sidecar's view of a real server, over its admin socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from weir.client import AsyncClient, UnavailableError
from weir.config import ServerSettings, Settings
from weir.server.app import App
from weir.sidecar.engine_link import EngineLink

from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    server = ServerSettings(host="127.0.0.1", port=0, admin_address=f"unix:{tmp_path / 'admin.sock'}")
    engine = FakeEngine()
    made = App(Settings(server=server), engine, ByteTokenizer())
    await made.start()
    engine.load()
    await made.lifecycle.changed(0, timeout_s=5)
    yield made
    engine.decoding.set()
    made.request_stop()
    made.request_stop()
    await made.shut_down()


@pytest.fixture
def link(app: App) -> EngineLink:
    return EngineLink(app.admin_target)


async def test_the_budget_is_seen_through_the_admin_socket(app: App, link: EngineLink) -> None:
    view = await asyncio.to_thread(link.look)
    assert view is not None
    assert view.kv_total_tokens > 0
    assert 0 <= view.cached_share <= 1


async def test_a_drain_refuses_new_work_and_says_that_nothing_is_in_flight(app: App, link: EngineLink) -> None:
    assert await asyncio.to_thread(link.drain) == 0
    async with AsyncClient(f"127.0.0.1:{app.port}", max_attempts=1) as client:
        with pytest.raises(UnavailableError) as refused:
            await client.complete("late", max_tokens=1)
    assert refused.value.reason == "DRAINING"


async def test_a_proxy_for_the_world_outside_is_not_asked_for_the_engine_beside(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    beside = EngineLink(f"127.0.0.1:{app.port}")
    assert await asyncio.to_thread(beside.look) is not None
    beside.close()


async def test_no_server_is_no_answer_and_no_exception(tmp_path: Path) -> None:
    nobody = EngineLink(f"unix:{tmp_path / 'nothing.sock'}")
    assert await asyncio.to_thread(nobody.look) is None
    assert await asyncio.to_thread(nobody.drain) is None
    nobody.close()
