"""Admission policies compared on three traces: the real scheduler on a simulated clock, without a model.

    python benchmarks/admission.py [--write docs/admission.md]

A step costs STEP_S plus TOKEN_S for each token computed, the shape of a step on a GPU. Every policy sees the same
arrivals and the same true output lengths, which it does not know: it knows max_tokens.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weir.engine.blocks import BlockHasher, BlockPool
from weir.engine.plan import SchedulerLimits
from weir.engine.request import ChoiceFinish, FinishReason, GenerateRequest, SamplingParams
from weir.engine.scheduler import Scheduler
from weir.engine.tenants import Tenants
from weir.engine.waiting import WaitingQueue

STEP_S = 0.008
TOKEN_S = 0.00004
BLOCKS, BLOCK_SIZE = 2048, 16
MAX_RUNNING, MAX_BATCH_TOKENS = 256, 1024
REQUESTS = 1500
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")


@dataclass(frozen=True)
class Arrival:
    """A request, and the output length at which the model would end it."""

    at: float
    prompt: int
    max_tokens: int
    true_tokens: int


def chat(dice: random.Random) -> tuple[int, int, int]:
    """Short turns whose max_tokens is about twice what is used."""
    used = min(max(1, int(dice.lognormvariate(4.8, 0.7))), 512)
    return int(dice.lognormvariate(5.0, 0.8)) + 1, min(512, 2 * used + 32), used


def careless(dice: random.Random) -> tuple[int, int, int]:
    """Every client asks for 2,048 tokens and uses a tenth."""
    return int(dice.lognormvariate(5.0, 0.8)) + 1, 2048, min(2048, int(dice.expovariate(1 / 200)) + 1)


def documents(dice: random.Random) -> tuple[int, int, int]:
    """One in eight requests has a long document; outputs run to max_tokens."""
    prompt = dice.randrange(6000, 14000) if dice.random() < 0.125 else dice.randrange(50, 400)
    tokens = dice.randrange(50, 300)
    return prompt, tokens, tokens


TRACES: dict[str, tuple[Callable[[random.Random], tuple[int, int, int]], float]] = {
    "chat": (chat, 30.0),
    "careless max_tokens": (careless, 22.0),
    "documents among chats": (documents, 6.0),
}
POLICIES = {
    "reserve": ("reserve", 1.0),
    "guaranteed": ("guaranteed", 1.0),
    "optimistic 0.5": ("optimistic", 0.5),
    "optimistic 0.1": ("optimistic", 0.1),
}


@dataclass(frozen=True)
class Result:
    """What a policy made of a trace."""

    goodput: float
    wait_p50_s: float
    wait_p99_s: float
    mean_running: float
    preemptions: int
    recomputed_share: float


def make_trace(shape: Callable[[random.Random], tuple[int, int, int]], rate: float, seed: int) -> list[Arrival]:
    """Poisson arrivals of `rate` a second."""
    dice, now, trace = random.Random(seed), 0.0, []
    for _ in range(REQUESTS):
        now += dice.expovariate(rate)
        trace.append(Arrival(now, *shape(dice)))
    return trace


def simulate(trace: list[Arrival], admission: str, overcommit: float) -> Result:
    """Run a trace to its end."""
    tenants = Tenants()
    scheduler = Scheduler(
        SchedulerLimits(MAX_RUNNING, MAX_BATCH_TOKENS, admission, overcommit),
        BlockPool(BLOCKS, BLOCK_SIZE, prefix_cache=False),
        BlockHasher(BLOCK_SIZE),
        WaitingQueue(tenants, bypass_limit=64, bypass_age_s=10.0),
        tenants,
    )
    now, next_arrival, preemptions, computed, busy, running_time = 0.0, 0, 0, 0, 0.0, 0.0
    waits: dict[str, float] = {}
    while next_arrival < len(trace) or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, trace[next_arrival].at)
        while next_arrival < len(trace) and trace[next_arrival].at <= now:
            arrival = trace[next_arrival]
            spec = GenerateRequest(
                str(next_arrival), tuple(range(arrival.prompt)), SamplingParams(arrival.max_tokens), arrival=arrival.at
            )
            scheduler.submit(spec, now)
            next_arrival += 1
        plan = scheduler.plan(now)
        for request in plan.admitted:
            waits.setdefault(request.request_id, now - request.spec.arrival)
        preemptions += len(plan.preempted)
        computed += plan.num_tokens
        step_s = STEP_S + TOKEN_S * plan.num_tokens
        now, busy, running_time = now + step_s, busy + step_s, running_time + step_s * scheduler.num_running
        scheduler.collect(plan)
        for chunk in plan.chunks:
            if not chunk.samples:
                continue
            scheduler.append(chunk.choice, 0)
            if chunk.choice.num_output >= trace[int(chunk.choice.request.request_id)].true_tokens:
                scheduler.finish(chunk.choice, ChoiceFinish(FinishReason.STOP))
    output = sum(arrival.true_tokens for arrival in trace)
    needed = sum(arrival.prompt + arrival.true_tokens - 1 for arrival in trace)
    ordered = sorted(waits.values())
    return Result(
        goodput=output / now,
        wait_p50_s=ordered[len(ordered) // 2],
        wait_p99_s=ordered[math.ceil(0.99 * len(ordered)) - 1],
        mean_running=running_time / busy,
        preemptions=preemptions,
        recomputed_share=(computed - needed) / computed,
    )


def table() -> str:
    """All policies on all traces, as Markdown."""
    lines = [
        "| trace | policy | output tokens/s | wait p50 s | wait p99 s | running | preemptions | recomputed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (shape, rate) in TRACES.items():
        trace = make_trace(shape, rate, seed=7)
        for policy, (admission, overcommit) in POLICIES.items():
            r = simulate(trace, admission, overcommit)
            lines.append(
                f"| {name} | {policy} | {r.goodput:.0f} | {r.wait_p50_s:.2f} | {r.wait_p99_s:.2f} | "
                f"{r.mean_running:.1f} | {r.preemptions} | {100 * r.recomputed_share:.1f} % |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table, and put it between the markers of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="PAGE", type=Path, help="replace the table in this Markdown page")
    page = parser.parse_args().write
    made = table()
    print(made)
    if page is not None:
        before, _, rest = page.read_text().partition(MARKERS[0])
        _, _, after = rest.partition(MARKERS[1])
        page.write_text(f"{before}{MARKERS[0]}\n{made}\n{MARKERS[1]}{after}")


if __name__ == "__main__":
    main()
