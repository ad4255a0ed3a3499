"""Four ways to serve a workload with padded batches, each with one technique more than the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weir.bench.report import RequestTimes
from weir.bench.workload import WorkItem

from benchmarks.ablation.padded import PaddedModel, Row

CHUNK = 32


@dataclass(slots=True)
class Served:
    """Of each request: the times at which its tokens came, and the tokens."""

    times: list[RequestTimes]
    token_ids: list[list[int]] = field(default_factory=list)

    @classmethod
    def start(cls, requests: int) -> Served:
        """All requests are sent now."""
        now = time.monotonic()
        return cls([RequestTimes(now) for _ in range(requests)], [[] for _ in range(requests)])

    def take(self, rows: Sequence[Row | None], sampled: Sequence[int]) -> None:
        """Give each row whose tokens are all computed the token sampled behind them."""
        now = time.monotonic()
        for row, token in zip(rows, sampled, strict=True):
            if row is not None and row.live and not row.pending:
                row.tokens.append(token)
                self.times[row.number].add(now, 1)
                self.token_ids[row.number].append(token)


Policy = Callable[[PaddedModel, Sequence[WorkItem], int], Served]
"""(model, requests, rows of the batch) -> what came of it."""


def static_without_cache(model: PaddedModel, items: Sequence[WorkItem], rows: int) -> Served:
    """A batch runs until its last request has ended; every step computes every sequence from its beginning."""
    return _static(model, items, rows, cached=False)


def static_with_cache(model: PaddedModel, items: Sequence[WorkItem], rows: int) -> Served:
    """The same, but a step computes only what is not in the KV cache."""
    return _static(model, items, rows, cached=True)


def _static(model: PaddedModel, items: Sequence[WorkItem], rows: int, cached: bool) -> Served:
    served = Served.start(len(items))
    for first in range(0, len(items), rows):
        batch = [_row(first + place, item) for place, item in enumerate(items[first : first + rows])]
        while any(row.live for row in batch):
            if not cached:
                for row in batch:
                    row.done = 0
            # A row that has ended is carried along, as wide as it was.
            width = max(row.pending for row in batch if row.live)
            served.take(batch, model.step(batch, range(len(batch)), width))
    return served


def continuous(model: PaddedModel, items: Sequence[WorkItem], rows: int) -> Served:
    """A request that ends leaves its row to the next one, whose whole prompt is computed while the others wait."""
    served, waiting = Served.start(len(items)), _Waiting(items)
    batch: list[Row | None] = [None] * rows
    while True:
        if arrived := waiting.fill(batch):
            fresh = [row for place in arrived if (row := batch[place]) is not None]
            served.take(fresh, model.step(fresh, arrived, max(row.pending for row in fresh)))
        if not any(row is not None and row.live for row in batch):
            if waiting.empty:
                return served
            continue
        served.take(batch, model.step(batch, range(rows), 1))


def mixed(model: PaddedModel, items: Sequence[WorkItem], rows: int) -> Served:
    """Prompts are computed in chunks, in the same step as decodes; a decode is padded to the width of a chunk."""
    served, waiting = Served.start(len(items)), _Waiting(items)
    batch: list[Row | None] = [None] * rows
    while True:
        waiting.fill(batch)
        live = [row for row in batch if row is not None and row.live]
        if not live:
            return served
        width = min(CHUNK, max(row.pending for row in live))
        served.take(batch, model.step(batch, range(rows), width))


class _Waiting:
    """Requests that have no row yet."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        self._items = list(enumerate(items))

    @property
    def empty(self) -> bool:
        return not self._items

    def fill(self, batch: list[Row | None]) -> list[int]:
        """Put requests into the rows that are free. Returns those rows' indices."""
        free = [place for place, row in enumerate(batch) if row is None or not row.live][: len(self._items)]
        for place in free:
            batch[place] = _row(*self._items.pop(0))
        return free


def _row(number: int, item: WorkItem) -> Row:
    tokens = list(item.prompt_token_ids)
    return Row(number, tokens, end=len(tokens) + item.max_tokens)
