"""The wait that clients are told beside the one that came: four long requests fill the pool, others wait behind them.

weir serve --kv-memory 192MiB --max-model-len 4096
python benchmarks/told_wait.py localhost:50051
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass

from weir.client import AsyncClient, WeirError

LONG, LONG_TOKENS = 4, 2170
WAITER_TOKENS = 2000
PROBE_TOKENS = 600
PROBE_EVERY_S = 20.0
LOOK_EVERY_S = 5.0
AT_MOST_S = 300.0


@dataclass(frozen=True)
class Probe:
    """Sent at `at` seconds, told to wait `told_s`; it waited `waited_s`, or was refused or timed out."""

    at: float
    told_s: float
    waited_s: float
    outcome: str


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("--deadline", type=float, default=240.0, metavar="S", help="of each probe")
    args = parser.parse_args()
    async with AsyncClient(args.target, max_attempts=1) as client:
        began = time.monotonic()
        long = [asyncio.create_task(_ask(client, f"Long {n}", LONG_TOKENS, None)) for n in range(LONG)]
        await asyncio.sleep(3.0)
        waiter = asyncio.create_task(_ask(client, "waiter", WAITER_TOKENS, None))
        await asyncio.sleep(1.0)
        probes: list[asyncio.Task[Probe]] = []
        told: list[tuple[float, float]] = []
        while not waiter.done() and time.monotonic() - began < AT_MOST_S and not all(task.done() for task in long):
            now = time.monotonic() - began
            told.append((now, (await client.budget()).estimated_wait_s))
            if now > PROBE_EVERY_S * len(probes) + 5:
                probes.append(asyncio.create_task(_probe(client, began, told[-1][1], args.deadline)))
            await asyncio.sleep(LOOK_EVERY_S)
        freed = time.monotonic() - began
        print(f"first long request ended by {freed:.0f} s; the waiter waited {(await waiter)[0]:.1f} s")
        print("| at s | told s | waited s | |\n|---|---|---|---|")
        for probe in await asyncio.gather(*probes):
            print(f"| {probe.at:.0f} | {probe.told_s:.1f} | {probe.waited_s:.1f} | {probe.outcome} |")
        print("told by GetBudget:", ", ".join(f"{at:.0f} s: {wait:.1f}" for at, wait in told))
        await asyncio.gather(*long)


async def _ask(client: AsyncClient, prompt: str, max_tokens: int, timeout_s: float | None) -> tuple[float, str]:
    sent = time.monotonic()
    try:
        answer = await client.complete(prompt, max_tokens=max_tokens, ignore_eos=True, timeout_s=timeout_s)
    except WeirError as error:
        return time.monotonic() - sent, type(error).__name__
    return answer.timings.queue_s, "served"


async def _probe(client: AsyncClient, began: float, told_s: float, deadline_s: float) -> Probe:
    at = time.monotonic() - began
    return Probe(at, told_s, *await _ask(client, f"probe at {at:.0f}", PROBE_TOKENS, deadline_s))


if __name__ == "__main__":
    asyncio.run(main())
