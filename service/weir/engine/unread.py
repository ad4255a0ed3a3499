"""Events of one request between the engine and its reader: joined while they wait, and what memory they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from weir.engine.request import ChoiceFinish, Delta, Done, Event, Failed, TokenLogprobs

# What CPython takes for the parts of an event, about: an event with its fields, a token with its id and its text, a
# scored token without alternatives, an alternative (a tuple of a number and a float).
EVENT_BYTES = 300
TOKEN_BYTES = 60
SCORED_BYTES = 120
ALTERNATIVE_BYTES = 128


class Meter(Protocol):
    """Counts what a request's reader has not done with."""

    def add(self, num_bytes: int, exempt_bytes: int = 0) -> None:
        """So much more is held, or less if negative; `exempt_bytes` of it were known when the request was accepted."""


class NoMeter:
    """Counts nothing."""

    def add(self, num_bytes: int, exempt_bytes: int = 0) -> None:
        """Ignored."""


def held_bytes(event: Event) -> int:
    """About the memory that an event takes, from its shape alone. Joining two deltas saves exactly EVENT_BYTES."""
    if not isinstance(event, Delta):
        return EVENT_BYTES
    size = EVENT_BYTES + TOKEN_BYTES * len(event.token_ids) + len(event.text)
    if event.logprobs:
        size += _scores_bytes(event.logprobs)
    return size + prompt_scores_bytes(event)


def prompt_scores_bytes(event: Event) -> int:
    """The part of `held_bytes` that is prompt_logprobs: it was asked for, and its size is known beforehand."""
    if not isinstance(event, Delta) or not event.prompt_logprobs:
        return 0
    return _scores_bytes(event.prompt_logprobs)


def _scores_bytes(scores: Sequence[TokenLogprobs | None]) -> int:
    last = scores[-1]  # all have as many alternatives; the first of a prompt has no score at all
    alternatives = len(last.top) if last is not None else 0
    return len(scores) * (SCORED_BYTES + ALTERNATIVE_BYTES * alternatives)


class UnreadEvents:
    """Events in order, except that deltas of one choice which wait together become one delta.

    Between its admission and its end a request has nothing but deltas to tell, and those of different choices have no
    order, so nothing is lost; a reader that keeps up gets every event as it was.
    """

    __slots__ = ("_before", "_deltas", "_end")

    def __init__(self) -> None:
        self._before: deque[Event] = deque()
        self._deltas: dict[int, Delta | _Joined] = {}
        self._end: Done | Failed | None = None

    def __bool__(self) -> bool:
        return bool(self._deltas or self._before or self._end)

    def push(self, event: Event) -> int:
        """Add an event; how many bytes more are held now, as `held_bytes` counts them."""
        match event:
            case Delta():
                waiting = self._deltas.get(event.choice)
                if waiting is None:
                    self._deltas[event.choice] = event
                    return held_bytes(event)
                if isinstance(waiting, Delta):
                    waiting = self._deltas[event.choice] = _Joined(waiting)
                waiting.add(event)
                return held_bytes(event) - EVENT_BYTES
            case Done() | Failed():
                self._end = event
            case _:
                self._before.append(event)
        return EVENT_BYTES

    def pop(self) -> Event:
        """Take the next event. There must be one."""
        if self._before:
            return self._before.popleft()
        if self._deltas:
            waiting = self._deltas.pop(next(iter(self._deltas)))
            return waiting if isinstance(waiting, Delta) else waiting.delta()
        end, self._end = self._end, None
        assert end is not None, "nothing waits"
        return end


class _Joined:
    """Deltas of one choice, being joined."""

    __slots__ = ("_finish", "_first", "_logprobs", "_texts", "_token_ids")

    def __init__(self, first: Delta) -> None:
        self._first = first
        self._token_ids = list(first.token_ids)
        self._texts = [first.text]
        self._logprobs = list(first.logprobs)
        self._finish: ChoiceFinish | None = first.finish

    def add(self, delta: Delta) -> None:
        """Append the next delta of the choice. prompt_logprobs come with the first delta, or not at all."""
        self._token_ids += delta.token_ids
        self._texts.append(delta.text)
        self._logprobs += delta.logprobs
        self._finish = delta.finish

    def delta(self) -> Delta:
        """All of them as one."""
        return self._first._replace(
            token_ids=tuple(self._token_ids),
            text="".join(self._texts),
            logprobs=tuple(self._logprobs),
            finish=self._finish,
        )
