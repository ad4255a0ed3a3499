"""Writes choices to stdout as they are made, one after the other, each whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Self

from weir.client import Delta, TokenLogprob


class Printer:
    """The first unfinished choice is written as it comes; the others wait for their turn.

    A line that was begun is ended however the block ends, so that an error stands on a line of its own.
    """

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._turn = 0
        self._waiting: dict[int, list[Delta]] = defaultdict(list)
        self._logprobs: list[TokenLogprob] = []
        self._open_line = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_line()

    def add(self, delta: Delta) -> None:
        """Write what its turn has come for."""
        self._waiting[delta.choice].append(delta)
        while self._waiting[self._turn]:
            self._write(self._waiting[self._turn].pop(0))

    def mark(self, text: str) -> None:
        """Write what is no part of an answer into its line."""
        print(text, end="", flush=True)
        self._open_line = True

    def _write(self, delta: Delta) -> None:
        if not self._open_line and self._choices > 1:
            print(f"--- choice {self._turn + 1} of {self._choices}")
        print(delta.text, end="", flush=True)
        self._open_line = True
        self._logprobs += delta.logprobs
        if delta.finish_reason is not None:
            self._end_line()
            _print_logprobs(self._logprobs)
            self._logprobs = []
            self._turn += 1

    def _end_line(self) -> None:
        if self._open_line:
            self._open_line = False
            print(flush=True)


def _print_logprobs(tokens: Sequence[TokenLogprob]) -> None:
    if not tokens:
        return
    print(f"{'token':>8} {'logprob':>10}  alternatives")
    for token in tokens:
        others = "  ".join(f"{other} {logprob:.4f}" for other, logprob in token.top)
        logprob = "" if token.logprob is None else f"{token.logprob:.4f}"
        print(f"{token.token_id:>8} {logprob:>10}  {others}".rstrip())
