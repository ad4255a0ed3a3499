"""Drive a server with everything at once, and account for every request, byte and descriptor afterwards: `make soak`.

    python -m tests.soak --seconds 900 [--write docs/reliability.md]

The exit code is 1 when a request had no end or two, an answer differs from its run alone, something is held afterwards
or memory grows. Times are printed beside their bounds and judged by the reader: they are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from weir.client import AsyncClient, Budget

from benchmarks.local_server import serving
from benchmarks.markdown import replace_between, table
from tests.soak.mischief import Mischief
from tests.soak.probe import Seen, probe
from tests.soak.traffic import Client, Ledger, unequal_alone

_MODEL = Path("models/smollm2-135m-instruct")
_TOKENS = {"gold": "gold-token", "batch": "batch-token"}
_FLAGS = (
    *("--kv-memory", "192MiB", "--max-batch-tokens", "96", "--max-running", "24", "--default-max-tokens", "64"),
    *("--max-queue-requests", "128", "--max-queue-tokens", "40000", "--max-stream-buffer", "256KiB"),
    *("--max-buffer", "4MiB", "--unread-timeout", "10s", "--max-connections", "128"),
    *("--tenants", '{"gold": {"weight": 4}, "batch": {"kv_share": 0.6, "queue_share": 0.6}}'),
)
_CLIENTS = 10
_WARM_UP = 0.4
_MOST_AGAIN = 200
_SLOPE_BOUND = 0.5
_SAMPLE_S = 5.0


@dataclass(slots=True)
class Sizes:
    """Of the server's process and the engine's, at moments in seconds: resident bytes and descriptors."""

    at_s: list[float] = field(default_factory=list)
    rss_bytes: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    descriptors: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def slope_mib_per_min(self, which: int) -> float:
        """Of resident memory, by least squares, after the warm-up."""
        first = int(len(self.at_s) * _WARM_UP)
        slope, _ = np.polyfit(self.at_s[first:], self.rss_bytes[which][first:], 1)
        return float(slope * 60 / 2**20)


@dataclass(frozen=True, slots=True)
class Result:
    """All that was measured."""

    seconds: float
    ledger: Ledger
    mischief: Mischief
    sizes: Sizes
    seen: Seen
    again: int
    unequal: int
    left: Budget
    idle_descriptors: tuple[tuple[int, int], tuple[int, int]]

    def faults(self) -> list[str]:
        """What must not be."""
        found = list(dict.fromkeys(self.ledger.wrong + self.seen.failed))[:20]
        if (ended := self.ledger.ends.total()) != self.ledger.begun:
            found.append(f"{self.ledger.begun} requests had {ended} ends")
        if self.unequal:
            found.append(f"{self.unequal} answers differ from their runs alone")
        if self.left.kv_used_tokens or self.left.running_requests or self.left.queued_requests:
            found.append(f"held afterwards: {self.left}")
        # A short run is all warm-up.
        for which, name in enumerate(("server", "engine")):
            if self.seconds >= 600 and (slope := self.sizes.slope_mib_per_min(which)) > _SLOPE_BOUND:
                found.append(f"the {name} grows by {slope:.2f} MiB a minute")
            before, after = (descriptors[which] for descriptors in self.idle_descriptors)
            if after > before + 2:
                found.append(f"the {name} had {before} descriptors and has {after}")
        return found

    def rows(self) -> list[list[str]]:
        """What was measured, and what it must be."""
        did, ends = self.mischief.counts, self.ledger.ends
        health, gaps = np.array(self.seen.health_s), np.array(self.seen.gaps_s)
        (server, engine), (server_after, engine_after) = self.idle_descriptors
        slopes = [self.sizes.slope_mib_per_min(which) for which in (0, 1)]
        peaks = [max(sizes) >> 20 for sizes in self.sizes.rss_bytes]
        return [
            ["requests, and their ends", f"{self.ledger.begun}, {ends.total()}", "equal"],
            ["answered whole", str(ends["OK"]), ""],
            ["refused with a time to come back", str(ends["RESOURCE_EXHAUSTED KV_BUDGET_EXHAUSTED"]), ""],
            ["ended by their deadline", str(sum(n for how, n in ends.items() if how.startswith("DEADLINE"))), ""],
            ["cancelled, closed by the client", f"{ends['CANCELLED CANCELLED']}, {ends['closed by the client']}", ""],
            ["ends without a typed error", str(len(self.ledger.wrong)), "0"],
            ["answers computed again alone, and different", f"{self.again}, {self.unequal}", "0 different"],
            ["floods of 300 requests", str(did["floods"]), ""],
            ["clients killed, of them stopped before", f"{did['killed clients']}, {did['stopped clients']}", ""],
            ["streams that nobody read", str(did["unread streams"]), ""],
            ["hostile requests", str(did["hostile requests"]), ""],
            ["reloads of the token file", str(did["token reloads"]), ""],
            ["KV tokens, running, waiting afterwards", _left(self.left), "0, 0, 0"],
            ["memory of server and engine, MiB", f"{peaks[0]}, {peaks[1]}", ""],
            ["its slope after warm-up, MiB a minute", f"{slopes[0]:.2f}, {slopes[1]:.2f}", f"{_SLOPE_BOUND}"],
            ["descriptors before, afterwards", f"{server} + {engine}, {server_after} + {engine_after}", "equal"],
            ["health, p50 and p99, s", f"{np.quantile(health, 0.5):.3f}, {np.quantile(health, 0.99):.3f}", "p99 0.1"],
            ["slowest health answer, s", f"{health.max():.3f}", ""],
            ["a stranger's stream: gap p99, s", f"{np.quantile(gaps, 0.99):.3f}", ""],
            ["its longest gap, s", f"{gaps.max():.3f}", "0.3"],
        ]


def _left(budget: Budget) -> str:
    return f"{budget.kv_used_tokens}, {budget.running_requests}, {budget.queued_requests}"


async def soak(target: str, token_file: Path, seconds: float, server: psutil.Process) -> Result:
    """Everything at once for so long; then what is left, and answers once more, alone."""
    clients = {tenant: AsyncClient(target, token=token, tenant=tenant) for tenant, token in _TOKENS.items()}
    await clients["gold"].wait_ready(300)
    engine = max(server.children(), key=lambda child: child.memory_info().rss)
    before = (server.num_fds(), engine.num_fds())
    ledger, until, sizes = Ledger(), asyncio.Event(), Sizes()
    mischief = Mischief(target, _TOKENS["batch"], ledger, until)
    asking = [
        Client(connection, tenant, random.Random(number), ledger)
        for number in range(_CLIENTS // 2)
        for tenant, connection in clients.items()
    ]
    context = multiprocessing.get_context("spawn")
    stop, (results, theirs) = context.Event(), context.Pipe(duplex=False)
    stranger = context.Process(target=probe, args=(target, _TOKENS["gold"], stop, theirs), daemon=True)
    stranger.start()
    tasks = [asyncio.create_task(client.ask_until(until)) for client in asking]
    tasks += [asyncio.create_task(_measure((server, engine), until, sizes))]
    tasks += [asyncio.create_task(doing) for doing in _doings(mischief, token_file)]
    await asyncio.sleep(seconds)
    stop.set()
    until.set()
    await asyncio.gather(*tasks)
    seen: Seen = await asyncio.to_thread(results.recv)
    await asyncio.to_thread(stranger.join, 30)
    left = await _idle(clients["gold"])
    chosen = random.Random(3).sample(ledger.answers, min(_MOST_AGAIN, len(ledger.answers)))
    unequal = await unequal_alone(clients["gold"], chosen)
    after = (server.num_fds(), engine.num_fds())
    for client in clients.values():
        await client.close()
    return Result(seconds, ledger, mischief, sizes, seen, len(chosen), len(unequal), left, (before, after))


def _doings(mischief: Mischief, token_file: Path) -> list:  # type: ignore[type-arg]
    return [
        mischief.flood(),
        mischief.kill_clients(),
        mischief.leave_unread(),
        mischief.send_hostile_requests(),
        mischief.reload_tokens(token_file, _lines()),
    ]


async def _measure(processes: Sequence[psutil.Process], until: asyncio.Event, sizes: Sizes) -> None:
    began = time.monotonic()
    while not until.is_set():
        sizes.at_s.append(time.monotonic() - began)
        for which, process in enumerate(processes):
            sizes.rss_bytes[which].append(process.memory_info().rss)
            sizes.descriptors[which].append(process.num_fds())
        await asyncio.sleep(_SAMPLE_S)


async def _idle(client: AsyncClient) -> Budget:
    """The budget once nothing runs, or after a minute."""
    for _ in range(240):
        budget = await client.budget()
        if not (budget.kv_used_tokens or budget.running_requests or budget.queued_requests):
            break
        await asyncio.sleep(0.25)
    return budget


def _lines() -> str:
    return "".join(f"{token}\n" for token in _TOKENS.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--note", default="", help="a sentence about the run, as what else the machine did")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "tokens"
        token_file.touch(0o600)
        token_file.write_text(_lines())
        with serving(_MODEL, *_FLAGS, "--auth-tokens-file", str(token_file)) as target:
            [server] = [child for child in psutil.Process().children() if "serve" in child.cmdline()]
            result = asyncio.run(soak(target, token_file, args.seconds, server))
    measured = table(["what", "measured", "bound"], result.rows())
    note = f"{args.seconds / 60:.1f} minutes, {os.cpu_count()} cores. {args.note}".strip()
    print(f"{measured}\n\n{note}\nends: {dict(result.ledger.ends)}")
    if args.write:
        replace_between(args.write, "soak", f"{measured}\n\n{note}")
    for fault in (faults := result.faults()):
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
