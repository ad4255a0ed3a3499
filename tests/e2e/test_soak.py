"""2,000 requests of random shape over real gRPC, with every way a client can misbehave: nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from weir.client import (
    AsyncClient,
    BudgetExhaustedError,
    DeadlineError,
    InvalidRequestError,
    RequestCancelledError,
)

from tests.contract.server_process import ServerProcess

pytestmark = pytest.mark.slow
REQUESTS = 2000
WARM_UP = 600
AT_ONCE = 48
FLAGS = (
    *("--kv-memory", "80KiB", "--max-model-len", "96", "--block-size", "16"),
    *("--max-running", "12", "--max-batch-tokens", "48", "--max-queue-requests", "30", "--max-queue-tokens", "3000"),
    *("--bypass-limit", "4", "--preempt-lower-priority", "--admission", "optimistic", "--overcommit", "0.3"),
    *("--tenants", '{"gold": {"weight": 3}, "small": {"kv_share": 0.6, "queue_share": 0.3}}'),
)


async def _one(client: AsyncClient, dice: random.Random) -> str:
    """One request; how it ended, as its one terminal event told."""
    prompt = [dice.randrange(256) for _ in range(dice.choice((1, 3, 8, 16, 30, 50)))]
    if dice.random() < 0.3:
        prompt[: len(prompt) // 2] = [7] * (len(prompt) // 2)  # a prefix that others share
    options = {
        "max_tokens": dice.randint(1, 40),
        "n": dice.choice((1, 1, 1, 2, 3)),
        "priority": dice.choice((0, 5, 5, 9)),
        "temperature": dice.choice((0.0, 1.0)),
        "ignore_eos": dice.random() < 0.7,
        "cache_salt": dice.choice(("", "s")),
    }
    timeout_s = dice.choice((None, None, None, 0.01, 0.1, 1.0))
    behaviour = dice.choice(("stream", "stream", "unary", "close", "cancel", "bad"))
    finishes: Counter[int] = Counter()
    try:
        if behaviour == "bad":
            options["top_p"] = 1.5
        if behaviour in ("unary", "bad"):
            completion = await client.complete(token_ids=prompt, timeout_s=timeout_s, **options)  # type: ignore[arg-type]
            assert len(completion.choices) == options["n"]
            return "done"
        stream = client.generate(token_ids=prompt, timeout_s=timeout_s, **options)  # type: ignore[arg-type]
        async with stream:
            seen = 0
            async for delta in stream:
                assert not finishes[delta.choice], "tokens after the end of a choice"
                finishes[delta.choice] += delta.finish_reason is not None
                seen += 1
                if behaviour == "close" and seen > 3:
                    return "closed"
                if behaviour == "cancel" and seen == 2 and stream.request_id is not None:
                    await client.cancel(stream.request_id)
        assert finishes == Counter(range(int(options["n"]))), "a choice without an end"  # type: ignore[call-overload]
        assert stream.usage is not None
        return "done"
    except (DeadlineError, BudgetExhaustedError, InvalidRequestError, RequestCancelledError) as error:
        return type(error).__name__


async def _run(server: ServerProcess) -> tuple[Counter[str], int, int]:
    dice = random.Random(1)
    places = asyncio.Semaphore(AT_ONCE)
    ends: Counter[str] = Counter()
    # The impatient one takes the first refusal for an answer; the others come back when they were told to.
    clients = [
        AsyncClient(server.target, tenant=tenant, max_attempts=attempts)
        for tenant, attempts in (("", 20), ("gold", 20), ("small", 20), ("impatient", 1))
    ]

    async def one(seed: int) -> None:
        async with places:
            ends[await _one(clients[seed % len(clients)], random.Random(seed))] += 1

    async def wave(count: int) -> None:
        await asyncio.gather(*(one(dice.randrange(2**32)) for _ in range(count)))
        await _eventually(lambda: _idle(clients[0]))

    await wave(WARM_UP)
    warm = _resident(server)
    await wave(REQUESTS - WARM_UP)
    grown = _resident(server)
    budget = await clients[0].budget()
    assert (budget.kv_used_tokens, budget.running_requests) == (0, 0)
    assert (budget.queued_requests, budget.queued_tokens) == (0, 0)
    assert budget.kv_free_tokens + budget.kv_cached_tokens == budget.kv_total_tokens
    for client in clients:
        await client.close()
    return ends, warm, grown


async def _idle(client: AsyncClient) -> bool:
    budget = await client.budget()
    return budget.running_requests == 0 and budget.queued_requests == 0 and budget.kv_used_tokens == 0


async def _eventually(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if await condition():  # type: ignore[misc]
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the server did not become idle")


def _resident(server: ServerProcess) -> int:
    process = psutil.Process(server.process.pid)
    return sum(p.memory_info().rss for p in (process, *process.children(recursive=True)))


def test_every_request_ends_once_and_everything_returns_to_zero(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, *FLAGS) as server:
        server.ready().close()
        ends, warm, grown = asyncio.run(_run(server))
        assert server.terminate() == 0
    assert sum(ends.values()) == REQUESTS
    assert ends["done"] > REQUESTS / 5, ends
    for kind in ("closed", "DeadlineError", "BudgetExhaustedError", "InvalidRequestError", "RequestCancelledError"):
        assert ends[kind] > 0, f"the soak never saw {kind}: {ends}"
    assert grown < warm * 1.05, f"resident memory grew from {warm >> 20} to {grown >> 20} MiB"
