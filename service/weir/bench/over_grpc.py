"""A workload against a running server: what clients see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypedDict

from weir.bench.report import EngineCounts, Report, RequestTimes, make_report
from weir.bench.workload import WorkItem, Workload, arrival_times
from weir.client import AsyncClient, Budget, Message, WeirError

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
    async with AsyncClient(target) as client:
        await client.wait_ready(_READY_S)
        run = _Run(client, workload, rate, concurrency, lambda tokens: None)
        report = await run.report()
    for error in run.errors:
        raise error
    return report


async def run_with(
    client: AsyncClient,
    workload: Workload,
    *,
    rate: float | None,
    concurrency: int | None,
    count_tokens: Callable[[int], None],
) -> Report:
    """The same, but requests that fail are counted, and `count_tokens` is told of each token as it comes.

    Raises the WeirError of the first request when all fail.
    """
    run = _Run(client, workload, rate, concurrency, count_tokens)
    report = await run.report()
    if len(run.errors) == len(workload.items):
        raise run.errors[0]
    return report


class _Run:
    """One workload on its way. `errors` are those of its requests, in the order in which they came."""

    def __init__(
        self,
        client: AsyncClient,
        workload: Workload,
        rate: float | None,
        concurrency: int | None,
        count_tokens: Callable[[int], None],
    ) -> None:
        self.errors: list[WeirError] = []
        self._client = client
        self._workload = workload
        self._rate = rate
        self._places = asyncio.Semaphore(concurrency or len(workload.items))
        self._count_tokens = count_tokens
        self._began = 0.0

    async def report(self) -> Report:
        """Send everything, and sum up."""
        peak = _PeakKv()
        workload, client = self._workload, self._client
        due = arrival_times(len(workload.items), self._rate)
        before = await client.budget()
        watching = asyncio.create_task(peak.watch(client))
        self._began = time.monotonic()
        times = await asyncio.gather(*(self._one(item, at) for item, at in zip(workload.items, due, strict=True)))
        wall_s = time.monotonic() - self._began
        watching.cancel()
        # A server that went away is told by its requests.
        with suppress(asyncio.CancelledError, WeirError):
            await watching
        after = await self._budget_after(before)
        hits = after.prefix_hit_tokens - before.prefix_hit_tokens
        needed = workload.prompt_tokens + workload.output_tokens - len(times) - hits
        engine = EngineCounts(
            steps=after.step - before.step,
            tokens_computed=after.computed_tokens - before.computed_tokens,
            tokens_needed=None if self.errors else needed,
            peak_kv_tokens=peak.tokens,
            kv_total_tokens=after.kv_total_tokens,
        )
        mode = "over gRPC" + ("" if self._rate is None else f" at {self._rate:g}/s")
        return make_report(workload, mode, times, wall_s, engine)

    async def _one(self, item: WorkItem, after_s: float) -> RequestTimes:
        await asyncio.sleep(self._began + after_s - time.monotonic())
        async with self._places:
            times = RequestTimes(time.monotonic() if self._rate is None else self._began + after_s)
            try:
                await self._stream(item, times)
            except WeirError as error:
                self.errors.append(error)
                times.failed = error.reason or error.code
            return times

    async def _stream(self, item: WorkItem, times: RequestTimes) -> None:
        prompt: _Prompt = (
            {"token_ids": item.prompt_token_ids}
            if item.said is None
            else {"messages": [{"role": "user", "content": item.said}]}
        )
        stream = self._client.generate(**prompt, max_tokens=item.max_tokens, temperature=0.0, ignore_eos=True)
        async with stream:
            async for delta in stream:
                times.add(time.monotonic(), len(delta.token_ids))
                self._count_tokens(len(delta.token_ids))

    async def _budget_after(self, before: Budget) -> Budget:
        try:
            return await self._client.budget()
        except WeirError:
            # The server is gone; so are its counts.
            return before


class _Prompt(TypedDict, total=False):
    token_ids: Sequence[int]
    messages: Sequence[Message]
