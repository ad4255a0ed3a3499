"""Tenants over the wire: whose a call is, and that nothing of one tenant is seen by another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from weir.client import AsyncClient, InvalidRequestError, RequestCancelledError, UnauthenticatedError
from weir.config import ServerSettings, Settings
from weir.server.app import App

from tests.contract.decode import eventually
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer


def caller(app: App, tenant: str = "", token: str = "") -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{app.port}", tenant=tenant, token=token, max_attempts=1)


async def test_two_tenants_use_the_same_id_at_once_and_each_is_told_that_one(app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    async with caller(app, "gold") as gold, caller(app, "batch") as batch, caller(app) as nobody:
        calls = [asyncio.create_task(c.complete("ab", request_id="r", max_tokens=2)) for c in (gold, batch, nobody)]
        await eventually(lambda: len(engine.streams) == 3)
        engine.decoding.set()
        assert [(await call).request_id for call in calls] == ["r", "r", "r"]
    assert sorted(spec.tenant for spec in engine.submitted) == ["", "batch", "gold"]


async def test_a_gateways_id_gets_a_suffix_only_beside_the_tenants_own(app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    header = (("x-request-id", "hop"),)
    async with caller(app, "gold") as gold, caller(app, "batch") as batch:
        calls = [asyncio.create_task(c.complete("ab", max_tokens=2, metadata=header)) for c in (gold, batch, gold)]
        await eventually(lambda: len(engine.streams) == 3)
        engine.decoding.set()
        first, other, second = [(await call).request_id for call in calls]
    assert other == "hop"
    assert {first, second} > {"hop"}
    assert any(name.startswith("hop-") for name in (first, second))


async def test_cancel_ends_the_callers_own_request_of_an_id_and_no_other(app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    async with caller(app, "gold") as gold, caller(app, "batch") as batch:
        golds = asyncio.create_task(gold.complete("ab", request_id="r", max_tokens=2))
        batchs = asyncio.create_task(batch.complete("ab", request_id="r", max_tokens=2))
        await eventually(lambda: len(engine.streams) == 2)
        assert await batch.cancel("r")
        with pytest.raises(RequestCancelledError):
            await batchs
        assert not golds.done()
        assert not await batch.cancel("r")
        engine.decoding.set()
        assert (await golds).text == "ab"


async def test_what_is_said_of_an_id_is_the_same_whether_another_tenant_uses_it_or_nobody(
    app: App, engine: FakeEngine
) -> None:
    engine.decoding.clear()
    async with caller(app, "gold") as gold, caller(app, "batch") as batch:
        running = asyncio.create_task(gold.complete("ab", request_id="theirs", max_tokens=2))
        await eventually(lambda: len(engine.streams) == 1)
        assert [await batch.cancel(name) for name in ("theirs", "nobodys")] == [False, False]
        engine.decoding.set()
        names = [(await batch.complete("ab", request_id=name, max_tokens=1)).request_id for name in ("theirs", "free")]
        assert names == ["theirs", "free"]
        await running


async def test_a_tenant_still_may_not_repeat_an_id_of_its_own(app: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    async with caller(app, "gold") as gold:
        running = asyncio.create_task(gold.complete("ab", request_id="r", max_tokens=2))
        await eventually(lambda: len(engine.streams) == 1)
        with pytest.raises(InvalidRequestError):
            await gold.complete("ab", request_id="r")
        engine.decoding.set()
        await running


@pytest.fixture
async def bound(engine: FakeEngine, tokenizer: ByteTokenizer, tmp_path: Path) -> AsyncIterator[App]:
    """A server whose tokens are for tenants."""
    tokens = tmp_path / "tokens"
    tokens.write_text("tenant=gold g\ntenant=batch b\ntenant=* gateway\nplain\n")
    server = ServerSettings(host="127.0.0.1", port=0, admin_address="127.0.0.1:0", auth_tokens_file=str(tokens))
    app = App(Settings(server=server), engine, tokenizer)
    await app.start()
    engine.load()
    await app.lifecycle.changed(0, timeout_s=5)
    yield app
    engine.decoding.set()
    await app.shut_down()


@pytest.mark.parametrize(
    ("token", "named", "tenant"),
    [("g", "", "gold"), ("g", "gold", "gold"), ("b", "", "batch"), ("plain", "", ""), ("gateway", "gold", "gold")],
)
async def test_queue_and_budget_are_those_of_the_tokens_tenant(
    bound: App, engine: FakeEngine, token: str, named: str, tenant: str
) -> None:
    async with caller(bound, named, token) as client:
        await client.complete("ab", max_tokens=1)
    assert [spec.tenant for spec in engine.submitted] == [tenant]


async def test_naming_another_tenant_does_not_reach_its_request(bound: App, engine: FakeEngine) -> None:
    engine.decoding.clear()
    async with (
        caller(bound, token="g") as gold,
        caller(bound, "gold", "b") as thief,
        caller(bound, "gold", "plain") as nobody,
        caller(bound, "gold", "gateway") as gateway,
    ):
        running = asyncio.create_task(gold.complete("ab", request_id="r", max_tokens=2))
        await eventually(lambda: len(engine.streams) == 1)
        for stranger in (thief, nobody):
            for attempt in (stranger.cancel("r"), stranger.complete("ab", max_tokens=1), stranger.model()):
                with pytest.raises(UnauthenticatedError, match="not for the tenant that x-tenant-id names") as caught:
                    await attempt
                assert (caught.value.code, caught.value.reason) == ("PERMISSION_DENIED", "TENANT_REFUSED")
        assert not running.done()
        assert await gateway.cancel("r")
        with pytest.raises(RequestCancelledError):
            await running
    assert len(engine.submitted) == 1


async def test_the_holder_of_another_tenants_token_does_not_find_the_request_either(
    bound: App, engine: FakeEngine
) -> None:
    engine.decoding.clear()
    others = [caller(bound, token=token) for token in ("b", "plain")]
    async with caller(bound, token="g") as gold:
        running = asyncio.create_task(gold.complete("ab", request_id="r", max_tokens=2))
        await eventually(lambda: len(engine.streams) == 1)
        for other in others:
            async with other:
                assert not await other.cancel("r")
        assert await gold.cancel("r")
        with pytest.raises(RequestCancelledError):
            await running
