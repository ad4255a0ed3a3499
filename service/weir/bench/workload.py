"""Workload files: what to ask, in the format {"name", "requests": [{"prompt_token_ids": [...], "max_tokens": N}]}."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path


class WorkloadError(ValueError):
    """The file is no workload; the message says where."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: greedy, exactly `max_tokens` tokens (end-of-sequence is ignored)."""

    prompt_token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they are sent."""

    name: str
    items: tuple[WorkItem, ...]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(len(item.prompt_token_ids) for item in self.items)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(item.max_tokens for item in self.items)


def read_workload(path: str | Path) -> Workload:
    """Raises WorkloadError when the file cannot be read or a request is malformed."""
    try:
        data = json.loads(Path(path).read_text())
        items = tuple(_item(number, request) for number, request in enumerate(data["requests"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{path}: {error!r}") from None
    if not items:
        raise WorkloadError(f"{path}: has no requests")
    return Workload(str(data.get("name", Path(path).stem)), items)


def _item(number: int, request: dict[str, object]) -> WorkItem:
    ids, max_tokens = request["prompt_token_ids"], request["max_tokens"]
    if not isinstance(ids, list) or not ids or not isinstance(max_tokens, int) or max_tokens < 1:
        raise WorkloadError(f"request {number} needs prompt_token_ids (not empty) and max_tokens (at least 1)")
    return WorkItem(tuple(int(token) for token in ids), max_tokens)


def arrival_times(count: int, rate: float | None, seed: int = 0) -> list[float]:
    """When each request is sent, in seconds from the start: a Poisson process of `rate` a second, or all at once."""
    if rate is None:
        return [0.0] * count
    gaps = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += gaps.expovariate(rate)
        times.append(now)
    return times
