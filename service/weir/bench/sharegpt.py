"""ShareGPT files: conversations of people with a model, whose lengths are those of real use.

[{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]; `messages` with
`role` and `content` is read too. The first turn of a human is the prompt, as a message through the model's chat
template; max_tokens is how many tokens the reply to it has under the served tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from weir.bench.workload import Served, WorkItem, Workload, WorkloadError, read_json

_HUMANS = frozenset({"human", "user"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a human said first, and what was answered."""

    said: str
    replied: str


@dataclass(frozen=True, slots=True)
class ShareGpt:
    """`requests` conversations of a file, in an order that `seed` makes, without those too long for the model."""

    path: Path
    exchanges: tuple[Exchange, ...]
    requests: int
    seed: int

    @classmethod
    def read(cls, path: Path, requests: int, seed: int) -> ShareGpt:
        """Raises WorkloadError for a file that holds no conversations."""
        exchanges = tuple(_exchanges(read_json(path)))
        if not exchanges:
            raise WorkloadError(f"{path} has no conversation in which a human says something and is answered")
        return cls(path, exchanges, requests, seed)

    def __call__(self, served: Served) -> Workload:
        """Raises WorkloadError when nothing fits the model."""
        order = list(self.exchanges)
        random.Random(self.seed).shuffle(order)
        items: list[WorkItem] = []
        why: Exception | str = "all are too long"
        for exchange in order:
            try:
                prompt = tuple(served.encode_chat(exchange.said))
                max_tokens = max(1, len(served.encode(exchange.replied)))
            except served.refusals as error:
                why = error
                continue
            if len(prompt) + max_tokens - 1 > served.max_model_len:
                continue
            items.append(WorkItem(prompt, max_tokens, exchange.said))
            if len(items) == self.requests:
                break
        if not items:
            raise WorkloadError(f"the model takes no conversation of {self.path}: {why}")
        return Workload(self.path.stem, tuple(items))


def _exchanges(data: Any) -> Iterator[Exchange]:
    for conversation in data if isinstance(data, list) else ():
        turns = [_turn(turn) for turn in _turns(conversation)]
        for (speaker, said), (answerer, replied) in pairwise(turns):
            if speaker in _HUMANS:
                if answerer not in _HUMANS and said.strip() and replied.strip():
                    yield Exchange(said, replied)
                break


def _turns(conversation: Any) -> list[Any]:
    if not isinstance(conversation, dict):
        return []
    turns = conversation.get("conversations") or conversation.get("messages")
    return turns if isinstance(turns, list) else []


def _turn(turn: Any) -> tuple[str, str]:
    if not isinstance(turn, dict):
        return "", ""
    speaker, said = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    return str(speaker), said if isinstance(said, str) else ""
