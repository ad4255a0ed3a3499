"""One run of one engine, in a process and an environment of its own. Standard library only.

The parent reads one JSON line a workload from standard output; what the engine itself prints goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

KV_GIB = 2
MAX_RUNNING = 64
_WARM_UP_REQUESTS, _WARM_UP_TOKENS = 16, 8


@dataclass(frozen=True, slots=True)
class Item:
    """One request: greedy, exactly `max_tokens` tokens."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine needs to know to load.

    longest: prompt + output tokens of the longest request; total: of all requests of the largest workload.
    """

    model: Path
    threads: int
    longest: int
    total: int


@dataclass(slots=True)
class Times:
    """Seconds since all requests were sent at which each output token came, and the tokens."""

    began: float
    token_s: list[list[float]]
    token_ids: list[list[int]]

    @classmethod
    def start(cls, requests: int) -> Times:
        """The clock starts."""
        return cls(time.perf_counter(), [[] for _ in range(requests)], [[] for _ in range(requests)])

    def add(self, request: int, token_ids: Sequence[int]) -> None:
        """Tokens of a request came now."""
        self.token_s[request] += [round(time.perf_counter() - self.began, 5)] * len(token_ids)
        self.token_ids[request] += token_ids

    def at(self, request: int, token_ids: Sequence[int], times: Sequence[float]) -> None:
        """A whole answer came, with the times (time.perf_counter) at which its tokens were made."""
        self.token_s[request] += [round(at - self.began, 5) for at in times]
        self.token_ids[request] += token_ids


class Engine(Protocol):
    """A loaded engine."""

    def run(self, items: Sequence[Item]) -> Times:
        """Send all requests at once and return when the last has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """One workload on one engine."""

    workload: str
    wall_s: float
    load_s: float
    token_s: list[list[float]]
    token_ids: list[list[int]]


def main(load: Callable[[Setup], Engine]) -> None:
    """The main function of a runner: `load` its engine, warm up, run each workload once.

    Raises RuntimeError when the engine returns another number of tokens than was asked for.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("workloads", type=Path, nargs="+")
    args = parser.parse_args()
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print; the pipe is for results
    workloads = [_read(path) for path in args.workloads]
    sizes = [[len(item.prompt) + item.max_tokens for item in items] for _, items in workloads]
    setup = Setup(args.model, args.threads, max(map(max, sizes)), max(map(sum, sizes)))
    began = time.perf_counter()
    engine = load(setup)
    load_s = time.perf_counter() - began
    for name, items in workloads:
        engine.run([Item(i.prompt, min(i.max_tokens, _WARM_UP_TOKENS)) for i in items[:_WARM_UP_REQUESTS]])
        began = time.perf_counter()
        times = engine.run(items)
        wall_s = time.perf_counter() - began
        _check(name, items, times)
        result = Result(name, wall_s, load_s, times.token_s, times.token_ids)
        print(json.dumps(asdict(result)), file=results, flush=True)
    sys.stdout.flush()


def _read(path: Path) -> tuple[str, list[Item]]:
    data = json.loads(path.read_text())
    return data["name"], [Item(r["prompt_token_ids"], r["max_tokens"]) for r in data["requests"]]


def _check(name: str, items: Sequence[Item], times: Times) -> None:
    wanted = [i.max_tokens for i in items]
    for made in (times.token_ids, times.token_s):
        if [len(each) for each in made] != wanted:
            raise RuntimeError(f"{name}: {sum(map(len, made))} tokens came, {sum(wanted)} were asked for")
