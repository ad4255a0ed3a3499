"""BudgetService: the numbers of the engine's snapshot, now and as they change."""

from __future__ import annotations

import asyncio

import pytest
from weir.client import AsyncClient, Budget, Client, UnavailableError
from weir.server.app import App

from tests.contract.fake_engine import FakeEngine


async def test_get_budget_passes_every_number_on(client: AsyncClient, engine: FakeEngine) -> None:
    engine.set_budget(
        kv_free_tokens=100,
        kv_used_tokens=280,
        kv_cached_tokens=20,
        kv_reserved_peak_tokens=360,
        running=3,
        queued=2,
        queued_tokens=70,
        estimated_wait_s=1.5,
        step=99,
        computed_tokens=5000,
        prefix_hit_tokens=640,
    )
    assert await client.budget() == Budget(400, 100, 280, 20, 360, 3, 2, 70, 1.5, 99, 5000, 640)


async def test_watch_budget_tells_now_and_then_only_changes(client: AsyncClient, engine: FakeEngine) -> None:
    watch = client.watch_budget(min_interval_s=0.05)
    assert (await anext(watch)).step == 0
    engine.set_budget(step=1)
    assert (await anext(watch)).step == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(watch)


async def test_the_sync_client_watches_too(app: App, engine: FakeEngine) -> None:
    def first() -> Budget:
        with Client(f"127.0.0.1:{app.port}") as client:
            return next(client.watch_budget())

    assert (await asyncio.to_thread(first)).kv_total_tokens == 400


async def test_there_is_no_budget_while_the_model_loads(loading: App) -> None:
    async with AsyncClient(f"127.0.0.1:{loading.port}", max_attempts=1) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.budget()
    assert caught.value.reason == "MODEL_LOADING"
