"""From requests to what they can still ask of the pool: the input of the admission formula in budget.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weir.engine.blocks import BlockPool, blocks_for
from weir.engine.budget import Demand, SharedPrefix, kv_tokens_needed, shareable_blocks
from weir.engine.plan import SchedulerLimits
from weir.engine.request import Choice, Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a request asks of the pool if it starts now. delay: steps by which its prompt may put off others' ends."""

    demands: list[Demand]
    delay: int


class Demands:
    """Reads requests and the pool; changes neither."""

    def __init__(self, limits: SchedulerLimits, pool: BlockPool) -> None:
        self._limits = limits
        self._pool = pool

    def of_running(self, running: Iterable[Request]) -> list[Demand]:
        """One demand a live choice; blocks with several holders are charged to the longest-lived one."""
        return [demand for _, demand in self.of_choices(running)]

    def of_choices(self, running: Iterable[Request]) -> list[tuple[Choice, Demand]]:
        """The same, each with its choice."""
        demands = self._with_choices(running)
        parked = [(choice.request, demand.steps) for choice, demand in demands if choice.parked]
        if not self._pool.shared and not parked:
            return demands
        for index, (choice, demand) in enumerate(demands):
            # A leader is charged for the prompt blocks of its parked siblings, so it counts as living as long.
            outlive = [steps for request, steps in parked if request is choice.request and not choice.parked]
            demands[index] = choice, replace(demand, steps=max([demand.steps, *outlive]))
        return self._charge_once(demands)

    def backlog(self, running: Iterable[Request]) -> int:
        """Prompt tokens that running choices still have before them."""
        return sum(self._prefill_tokens(choice) for request in running for choice in request.live)

    def of_candidate(self, request: Request, hit_tokens: int, backlog: int) -> Candidate:
        """The demands of all its choices, were it to start now behind `hit_tokens` cached tokens.

        Its prompt may be computed before those that are admitted already, or after, so it counts for all of them.
        """
        shared = shareable_blocks(len(request.spec.prompt_token_ids), self._pool.block_size)
        computed = [shared * self._pool.block_size if place else hit_tokens for place in range(len(request.live))]
        total = backlog + sum(choice.pending - done for choice, done in zip(request.live, computed, strict=True))
        demands = [
            replace(self._demand(choice, total, parks=place > 0), uncharged=shared if place else 0)
            for place, choice in enumerate(request.live)
        ]
        # The shared prompt blocks are charged to the leader, so it must count as living as long as any sibling.
        demands[0] = replace(demands[0], steps=max(demand.steps for demand in demands))
        return Candidate(demands, self._prefill_steps(total) - self._prefill_steps(backlog))

    def shared_prefixes(self, hits: Sequence[int], running: Iterable[Request]) -> list[SharedPrefix]:
        """For the leading blocks among `hits` that running choices hold: how long they will be held."""
        if not hits or self._pool.refs(hits[0]) == 0:
            return []
        longest: dict[int, int] = {}  # number of leading blocks -> steps of the longest-lived holder
        for choice, demand in self._with_choices(running):
            common = _common_prefix(hits, choice.blocks)
            if common:
                longest[common] = max(longest.get(common, 0), demand.steps)
        return _as_layers(longest)

    def _with_choices(self, running: Iterable[Request]) -> list[tuple[Choice, Demand]]:
        requests = list(running)
        backlog = self.backlog(requests)
        return [
            (choice, self._demand(choice, backlog, parks=choice.parked))
            for request in requests
            for choice in request.live
        ]

    def _demand(self, choice: Choice, backlog: int, parks: bool) -> Demand:
        """backlog: all prompt tokens still to be computed, its own included. parks: it waits for its leader first."""
        spec, length = choice.request.spec, len(choice.tokens) + choice.in_flight
        remaining = choice.remaining
        if self._limits.admission == "optimistic":
            remaining = max(1, int(remaining * self._limits.overcommit))
        limit = min(length - 1 + remaining, kv_tokens_needed(len(spec.prompt_token_ids), spec.params.max_tokens))
        prefilling = choice.pending > 1 or parks
        prefill_steps = max(1, self._prefill_steps(backlog)) + parks if prefilling else 1
        steps = max(1, prefill_steps + remaining - 1 + self._limits.collect_lag)
        return Demand(length - 1, limit, steps, prefilling=prefilling)

    def _prefill_steps(self, tokens: int) -> int:
        """Steps in which this many prompt tokens are computed at the latest, in whatever order."""
        return blocks_for(tokens, self._limits.prefill_tokens_per_step)

    def _prefill_tokens(self, choice: Choice) -> int:
        """Tokens of this choice that compete for the prefill part of the budget."""
        if choice.parked:
            prompt = len(choice.request.spec.prompt_token_ids)
            return choice.pending - shareable_blocks(prompt, self._pool.block_size) * self._pool.block_size
        return choice.pending if choice.pending > 1 else 0

    def _charge_once(self, demands: list[tuple[Choice, Demand]]) -> list[tuple[Choice, Demand]]:
        charged: set[int] = set()
        result = []
        for choice, demand in sorted(demands, key=lambda pair: -pair[1].steps):
            held = self._pool.shared.intersection(choice.blocks)
            uncharged = len(held & charged)
            charged |= held
            if choice.parked:
                uncharged = shareable_blocks(len(choice.request.spec.prompt_token_ids), self._pool.block_size)
            result.append((choice, replace(demand, uncharged=uncharged)))
        return result


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (mine, theirs) in enumerate(zip(a, b, strict=False)):
        if mine != theirs:
            return index
    return min(len(a), len(b))


def _as_layers(longest: dict[int, int]) -> list[SharedPrefix]:
    """Turn {leading blocks: steps} into additive layers: a block is held as long as any longer prefix lives."""
    layers: list[SharedPrefix] = []
    covered = 0
    for blocks in sorted(longest):
        steps = max(life for length, life in longest.items() if length >= blocks)
        layers.append(SharedPrefix(blocks - covered, steps))
        covered = blocks
    return layers
