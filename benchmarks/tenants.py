"""A tenant of weight beside one that floods: time to first token of the one, throughput of the other.

weir serve --tenants '{"gold": {"weight": 100}, "batch": {}}' --max-queue-requests 2048
python benchmarks/tenants.py localhost:50051
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from weir.client import AsyncClient, WeirError

GOLD_EVERY_S = 3.0


async def main() -> None:
    """Print a line for each tenant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("--batch", type=int, default=120, metavar="N", help="requests of the flood")
    parser.add_argument("--prompt", type=int, default=2000, metavar="TOKENS")
    parser.add_argument("--output", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--no-gold", action="store_true", help="the flood alone")
    parser.add_argument("--deadline", type=float, default=30.0, metavar="S", help="of each of gold's requests")
    args = parser.parse_args()
    dice = random.Random(0)
    async with (
        AsyncClient(args.target, tenant="batch", max_attempts=1) as batch,
        AsyncClient(args.target, tenant="gold", max_attempts=1) as gold,
    ):
        began = time.monotonic()
        flood = [
            asyncio.create_task(_flood(batch, dice.choices(range(1000, 40000), k=args.prompt), args.output))
            for _ in range(args.batch)
        ]
        firsts: list[float] = []
        refused = 0
        while not args.no_gold and not all(task.done() for task in flood):
            await asyncio.sleep(GOLD_EVERY_S)
            try:
                firsts.append(await _first_token_s(gold, args.deadline))
            except WeirError as error:
                print(f"gold: {error}")
                refused += 1
        await asyncio.gather(*flood)
        took = time.monotonic() - began
        tokens = args.batch * (args.prompt + args.output)
        print(f"batch: {args.batch} requests, {tokens} tokens in {took:.1f} s, {tokens / took:.0f} tokens/s")
        if firsts:
            ordered = sorted(firsts)
            print(
                f"gold: {len(firsts)} served, {refused} not; first token after "
                f"{ordered[len(ordered) // 2]:.2f} s (median), {ordered[-1]:.2f} s (worst)"
            )


async def _flood(client: AsyncClient, prompt: list[int], output: int) -> None:
    await client.complete(token_ids=prompt, max_tokens=output, ignore_eos=True)


async def _first_token_s(client: AsyncClient, deadline_s: float) -> float:
    sent = time.monotonic()
    first = None
    async for _ in client.generate(token_ids=[504, 1165], max_tokens=4, ignore_eos=True, timeout_s=deadline_s):
        first = first or time.monotonic() - sent
    return first or 0.0


if __name__ == "__main__":
    asyncio.run(main())
