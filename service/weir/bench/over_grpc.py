"""A workload against a running server: what clients see."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from weir.bench.report import EngineCounts, Report, RequestTimes, make_report
from weir.bench.workload import WorkItem, Workload, arrival_times
from weir.client import AsyncClient

_BUDGET_INTERVAL_S = 0.2
_READY_S = 120.0


class _PeakKv:
    """The most KV tokens that the budget was seen to use."""

    def __init__(self) -> None:
        self.tokens = 0

    async def watch(self, client: AsyncClient) -> None:
        async for budget in client.watch_budget(min_interval_s=_BUDGET_INTERVAL_S):
            self.tokens = max(self.tokens, budget.kv_used_tokens)


async def run_over_grpc(
    target: str, workload: Workload, *, rate: float | None = None, concurrency: int | None = None
) -> Report:
    """Send the workload: a closed loop of `concurrency` streams (default: all at once), or an open loop at `rate`.

    The server's counts are right when nobody else uses it. Raises the WeirError of a request that fails.
    """
    due = arrival_times(len(workload.items), rate)
    places = asyncio.Semaphore(concurrency or len(due))
    peak = _PeakKv()
    async with AsyncClient(target) as client:
        await client.wait_ready(_READY_S)
        before = await client.budget()
        watching = asyncio.create_task(peak.watch(client))
        began = time.monotonic()

        async def one(item: WorkItem, after_s: float) -> RequestTimes:
            await asyncio.sleep(began + after_s - time.monotonic())
            async with places:
                return await _stream(client, item, began + after_s if rate is not None else time.monotonic())

        times = await asyncio.gather(*(one(item, at) for item, at in zip(workload.items, due, strict=True)))
        wall_s = time.monotonic() - began
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        after = await client.budget()
    hits = after.prefix_hit_tokens - before.prefix_hit_tokens
    engine = EngineCounts(
        steps=after.step - before.step,
        tokens_computed=after.computed_tokens - before.computed_tokens,
        tokens_needed=workload.prompt_tokens + workload.output_tokens - len(times) - hits,
        peak_kv_tokens=peak.tokens,
        kv_total_tokens=after.kv_total_tokens,
    )
    mode = "over gRPC" + ("" if rate is None else f" at {rate:g}/s")
    return make_report(workload, mode, times, wall_s, engine)


async def _stream(client: AsyncClient, item: WorkItem, sent: float) -> RequestTimes:
    times = RequestTimes(sent)
    stream = client.generate(
        token_ids=item.prompt_token_ids, max_tokens=item.max_tokens, temperature=0.0, ignore_eos=True
    )
    async with stream:
        async for delta in stream:
            times.add(time.monotonic(), len(delta.token_ids))
    return times
