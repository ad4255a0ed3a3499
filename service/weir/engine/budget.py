"""Admission by future peak: how many KV blocks the running choices and a candidate can ever hold at once.

A choice with L tokens, of which the last pending ones are not yet in the cache, holds at most

    hold(t) = min(L - 1 + t, limit)        limit = prompt + max_tokens - 1

KV tokens t steps from now (the last sampled token is never written), and is gone after

    b = steps its prefill can still take + decode steps still allowed

steps. Between two ends no term shrinks, so the peak over all time is reached at one of the b:

    peak = max over t in {b_j} of  sum over {j: b_j >= t} of ceil(hold_j(t) / block_size)

A block that several choices hold counts once, for as long as its longest-lived holder lives.
docs/admission.md derives this and the bounds on waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from weir.engine.blocks import blocks_for

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one choice can still ask of the pool.

    base: KV tokens before the next step's writes, were its prefill done (L - 1).
    limit: KV tokens it can ever hold.
    steps: upper bound on the steps until it is gone.
    uncharged: blocks of its own that a longer-lived choice is charged for.
    prefilling: part of `steps` is its prompt, which other prompts may put off.
    """

    base: int
    limit: int
    steps: int
    uncharged: int = 0
    prefilling: bool = False

    def blocks_at(self, step: int, block_size: int) -> int:
        """Blocks this choice is charged for `step` steps from now; 0 once it is gone."""
        if step > self.steps:
            return 0
        return blocks_for(min(self.base + step, self.limit), block_size) - self.uncharged


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """`blocks` leading blocks of a candidate are already held by choices that live at least `steps` more steps."""

    blocks: int
    steps: int


class AdmissionPolicy(Protocol):
    """Decides whether a candidate fits beside what runs. Made anew for each admission round."""

    def peak(self) -> int:
        """Blocks that the running choices can hold at once."""
        ...

    def fits(self, candidate: Sequence[Demand], shared: Sequence[SharedPrefix] = (), delay: int = 0) -> bool:
        """Whether all demands of a candidate fit too; its first demand may share `shared` prefixes with others.

        delay: steps by which its prompt may put off the end of the running choices that are prefilling.
        """
        ...


class FuturePeak:
    """Policy `guaranteed`: admitted work can always reach its max_tokens without eviction.

    Policy `optimistic` is the same arithmetic over demands whose remaining decode was scaled by `overcommit`.
    """

    def __init__(self, running: Sequence[Demand], block_size: int, usable_blocks: int) -> None:
        self._block_size = block_size
        self._usable = usable_blocks
        self._base = np.array([d.base for d in running], dtype=np.int64)
        self._limit = np.array([d.limit for d in running], dtype=np.int64)
        self._steps = np.array([d.steps for d in running], dtype=np.int64)
        self._uncharged = np.array([d.uncharged for d in running], dtype=np.int64)
        self._prefilling = np.array([d.prefilling for d in running], dtype=np.int64)

    def peak(self) -> int:
        return int(self._blocks_at(self._steps, self._steps).max(initial=0))

    def fits(self, candidate: Sequence[Demand], shared: Sequence[SharedPrefix] = (), delay: int = 0) -> bool:
        steps = self._steps + delay * self._prefilling
        own_ends = [d.steps for d in candidate] + [s.steps for s in shared]
        # Without a delay, what runs fits by itself, and only the time that the candidate shares with it matters.
        last = max([d.steps for d in candidate] + ([int(steps.max(initial=0))] if delay else []))
        ends = np.unique(np.concatenate([steps[steps <= last], np.array(own_ends, dtype=np.int64)]))
        ends = ends[(ends > 0) & (ends <= last)]
        total = self._blocks_at(ends, steps)
        for demand in candidate:
            total += np.array([demand.blocks_at(int(t), self._block_size) for t in ends], dtype=np.int64)
        for prefix in shared:
            total -= np.where(ends <= prefix.steps, prefix.blocks, 0)
        return int(total.max(initial=0)) <= self._usable

    def _blocks_at(self, times: _Ints, steps: _Ints) -> _Ints:
        """Blocks charged to the running choices, gone after `steps`, at each of `times`: a row a time."""
        t = times[:, None]
        held = -(-np.minimum(self._base + t, self._limit) // self._block_size) - self._uncharged
        total: _Ints = np.where(steps >= t, held, 0).sum(axis=1)
        return total


class ReserveEverything:
    """Policy `reserve`: every choice is charged its maximum from the start, as if all reached it at once."""

    def __init__(self, running: Sequence[Demand], block_size: int, usable_blocks: int) -> None:
        self._block_size = block_size
        self._usable = usable_blocks
        self._reserved = sum(self._maximum(d) for d in running)

    def peak(self) -> int:
        return self._reserved

    def fits(self, candidate: Sequence[Demand], shared: Sequence[SharedPrefix] = (), delay: int = 0) -> bool:
        return self._reserved + sum(self._maximum(d) for d in candidate) <= self._usable

    def _maximum(self, demand: Demand) -> int:
        return blocks_for(demand.limit, self._block_size) - demand.uncharged


def kv_tokens_needed(num_prompt_tokens: int, max_tokens: int) -> int:
    """KV slots one choice needs to reach max_tokens: the last sampled token is never written."""
    return num_prompt_tokens + max_tokens - 1


def blocks_needed(num_prompt_tokens: int, max_tokens: int, n: int, block_size: int) -> int:
    """Blocks that n choices of one prompt need at their maximum, with the prompt's full blocks shared."""
    each = blocks_for(kv_tokens_needed(num_prompt_tokens, max_tokens), block_size)
    return each + (n - 1) * (each - shareable_blocks(num_prompt_tokens, block_size))


def shareable_blocks(num_prompt_tokens: int, block_size: int) -> int:
    """Leading full blocks of a prompt that can be shared while at least one token is still computed."""
    return (num_prompt_tokens - 1) // block_size
