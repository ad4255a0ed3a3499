"""The rungs of the ladder, and what one run of each is summed up to."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from weir.bench.report import Percentiles, RequestTimes
from weir.bench.workload import WorkItem, Workload
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.core import EngineCore
from weir.engine.load import load_engine

from benchmarks.ablation.padded import PaddedModel
from benchmarks.ablation.policies import CHUNK, Policy, continuous, mixed, static_with_cache, static_without_cache
from benchmarks.drive import drive

ROWS = 8
_REQUESTS, _SHARED_PROMPT, _REPEATS = 32, 64, 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. computed = needed + again + padding: tokens of requests that had to be computed, that were computed
    once more, and that belong to no request."""

    computed_tokens: int
    again_tokens: int
    padding_tokens: int
    output_tokens: int
    wall_s: float
    ttft_s: Percentiles
    itl_s: Percentiles
    token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rung:
    """repeats: how often it is run; the fastest counts."""

    title: str
    run: Callable[[], Outcome]
    repeats: int


def make_workload(vocab_size: int) -> Workload:
    """32 requests, all sent at once: 64 prompt tokens that all share, 8 to 136 of their own, 4 to 48 output tokens."""
    dice = random.Random(4)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(dice.randrange(vocab_size // 2, vocab_size) for _ in range(count))

    shared = tokens(_SHARED_PROMPT)
    items = [WorkItem(shared + tokens(dice.randint(8, 136)), dice.randint(4, 48)) for _ in range(_REQUESTS)]
    return Workload("ablation", tuple(items))


def ladder(model: str, work: Workload) -> Iterator[Rung]:
    """The rungs, each loaded and warm when it is handed out."""
    longest = max(len(item.prompt_token_ids) + item.max_tokens for item in work.items)
    padded = PaddedModel(model, ROWS, longest + CHUNK)
    for title, policy, repeats in (
        ("static padded batch, no cache", static_without_cache, 1),
        ("+ KV cache", static_with_cache, _REPEATS),
        ("+ continuous replacement", continuous, _REPEATS),
        ("+ chunked prefill beside decodes", mixed, _REPEATS),
    ):
        policy(padded, _warm_up(work), ROWS)
        yield Rung(title, partial(_run_padded, padded, policy, work), repeats)
    for title, prefix_cache in (("+ ragged: no padding", False), ("+ prefix cache", True)):
        core = _engine(model, prefix_cache)
        drive(core, Workload("warm-up", _warm_up(work)))
        yield Rung(title, partial(_run_engine, core, work), _REPEATS)


def _warm_up(work: Workload) -> tuple[WorkItem, ...]:
    return tuple(WorkItem(item.prompt_token_ids, 2) for item in work.items[:ROWS])


def _run_padded(padded: PaddedModel, policy: Policy, work: Workload) -> Outcome:
    padded.computed_tokens = padded.padding_tokens = 0
    began = time.monotonic()
    served = policy(padded, work.items, ROWS)
    wall_s = time.monotonic() - began
    computed, padding = padded.computed_tokens, padded.padding_tokens
    needed = work.prompt_tokens + work.output_tokens - len(work.items)
    return _outcome(work, computed, computed - padding - needed, padding, wall_s, served.times, served.token_ids)


def _engine(model: str, prefix_cache: bool) -> EngineCore:
    engine = EngineSettings(
        max_running=ROWS, max_batch_tokens=ROWS * CHUNK, prefix_cache=prefix_cache, kv_memory_bytes=2**29
    )
    return load_engine(Settings(model=ModelSettings(model=model), engine=engine))


def _run_engine(core: EngineCore, work: Workload) -> Outcome:
    core.flush_prefix_cache()
    trace = drive(core, work)
    return _outcome(work, trace.computed_tokens, 0, trace.padding_tokens, trace.wall_s, trace.times, trace.token_ids)


def _outcome(
    work: Workload,
    computed: int,
    again: int,
    padding: int,
    wall_s: float,
    times: Sequence[RequestTimes],
    token_ids: Sequence[Sequence[int]],
) -> Outcome:
    gaps = [b - a for one in times for a, b in itertools.pairwise(one.token_times)]
    return Outcome(
        computed,
        again,
        padding,
        work.output_tokens,
        wall_s,
        Percentiles.of([one.token_times[0] - one.sent for one in times]),
        Percentiles.of(gaps),
        tuple(tuple(ids) for ids in token_ids),
    )
