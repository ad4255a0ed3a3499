"""When waiting requests will start: the running set played forward from one end of a choice to the next.

Admission knows who can end when and how many blocks come back. The replay asks the same policy, in the queue's own
order and with its bypass, whenever something ends; StepCost says how long the steps between two ends take.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf

from weir.engine.budget import Demand
from weir.engine.ends import Remaining
from weir.engine.request import Choice, GenerateRequest, Request
from weir.engine.scheduler import Scheduler
from weir.engine.step_cost import StepCost
from weir.engine.waiting import Waiting

# What one replay looks at, at most: waiting requests, and steps at which one might start (about 0.2 ms each).
_MOST_WAITING = 128
_MOST_LOOKS = 48


@dataclass(frozen=True, slots=True)
class Start:
    """A request starts at this time of time.monotonic()."""

    at: float
    request: Request


def starts(
    scheduler: Scheduler, cost: StepCost, now: float, remaining: Remaining, newcomer: Request | None = None
) -> Iterator[Start]:
    """The starts to come in order of time, a newcomer's among them at the place it would have in the queue.

    Ends when all have started, or when the replay has looked at as much as it may: what comes later is not known.
    """
    queue = [replace(waiting) for waiting in islice(scheduler.waiting.candidates(now), _MOST_WAITING)]
    queue.sort(key=_order)
    if newcomer is not None:
        place = scheduler.waiting.place(newcomer, now)
        if len(queue) == len(scheduler.waiting) or place.order < queue[-1].order:
            insort(queue, place, key=_order)
    return _Replay(scheduler, cost, now, remaining).run(queue)


def least_wait_s(scheduler: Scheduler, cost: StepCost, now: float, newcomer: Request, remaining: Remaining) -> float:
    """Seconds that a newcomer waits at least, as far as a replay can tell; looks no further than its deadline."""
    deadline = newcomer.spec.deadline or inf
    at = now
    for start in starts(scheduler, cost, now, remaining, newcomer):
        at = start.at
        if start.request is newcomer or at > deadline:
            break
    return at - now


@dataclass(frozen=True, slots=True)
class _Row:
    """A running choice. demand: as of step `since`; it makes tokens from step `decodes_from` on, until `gone`."""

    request: Request
    demand: Demand
    since: int
    decodes_from: int
    gone: int
    lag: int

    @property
    def deadline(self) -> float:
        deadline = self.request.spec.deadline
        return inf if deadline is None else deadline

    def demand_at(self, step: int) -> Demand:
        demand = self.demand
        steps, made = demand.steps - (step - self.since), step - self.decodes_from
        if made <= 0:
            return Demand(demand.base, demand.limit, max(1, steps), demand.uncharged, demand.prefilling)
        base = demand.base + made
        return Demand(base, demand.limit, max(1, min(steps, demand.limit - base + self.lag)), demand.uncharged)


class _Replay:
    def __init__(self, scheduler: Scheduler, cost: StepCost, now: float, remaining: Remaining) -> None:
        self._scheduler = scheduler
        self._cost = cost
        self._remaining = remaining
        self._now = now
        self._step = 0
        self._prefill_done = 0.0  # the step at which all prompt tokens admitted so far are computed
        self._looks = 0
        self._cached: dict[int, tuple[int, int]] = {}
        self._rows: list[_Row] = []
        demands = scheduler.admission.demands.of_choices(scheduler.running)
        order = {id(request): place for place, request in enumerate(scheduler.running)}
        for choice, demand in sorted(demands, key=lambda pair: order[id(pair[0].request)]):
            self._add(choice, demand, 0 if choice.pending == 1 else choice.pending)

    def run(self, queue: list[Waiting]) -> Iterator[Start]:
        while queue:
            passed: list[Waiting] = []
            while (found := self._first_that_fits(queue, self._step, self._now, passed)) is not None:
                waiting, demands, hit_tokens = found
                queue.remove(waiting)
                for other in passed:
                    other.passed += 1
                self._start(waiting.request, demands, hit_tokens)
                yield Start(self._now, waiting.request)
                passed = []
            if self._looks > _MOST_LOOKS or not self._advance(queue):
                return

    def _first_that_fits(
        self, queue: list[Waiting], step: int, now: float, passed: list[Waiting]
    ) -> tuple[Waiting, list[Demand], int] | None:
        """The request that admission would start at this step, its demands and cached tokens; `passed`: over whom."""
        self._looks += 1
        scheduler = self._scheduler
        policy = scheduler.admission.policy_for([row.demand_at(step) for row in self._rows])
        backlog = ceil(max(0.0, self._prefill_done - step) * self._prefill_rate())
        too_large: list[tuple[int, ...]] = []
        for waiting in list(scheduler.waiting.order_at(queue, now)):
            spec = waiting.request.spec
            if (spec.deadline is not None and spec.deadline < now) or not self._tenant_allows(spec):
                continue
            hit_tokens, held = self._cached_prefix(waiting.request)
            candidate = scheduler.admission.demands.of_candidate(waiting.request, hit_tokens, backlog)
            demands = candidate.demands
            if held:
                demands[0] = replace(demands[0], uncharged=held)
            size = _size(demands, candidate.delay)
            has_slots = len(self._rows) + len(demands) <= scheduler.limits.max_running
            if has_slots and not any(_is_least(other, size) for other in too_large):
                if policy.fits(demands, (), candidate.delay):
                    return waiting, demands, hit_tokens
                too_large.append(size)
            if self._evicts(spec):
                return waiting, demands, hit_tokens
            passed.append(waiting)
            if not scheduler.waiting.may_be_passed(waiting, now) or len(passed) >= scheduler.limits.bypass_scan:
                break
        return None

    def _cached_prefix(self, request: Request) -> tuple[int, int]:
        """Tokens that are in the prefix cache now, and how many of their blocks somebody holds."""
        if id(request) not in self._cached:
            pool, hits = self._scheduler.pool, self._scheduler.admission.cached_prefix(request)
            self._cached[id(request)] = len(hits) * pool.block_size, sum(pool.refs(block) > 0 for block in hits)
        return self._cached[id(request)]

    def _evicts(self, spec: GenerateRequest) -> bool:
        """Whether it may make room for itself. The return of those that it evicts is not played."""
        may = self._scheduler.limits.preempt_lower_priority
        return may and any(row.request.spec.priority > spec.priority for row in self._rows)

    def _start(self, request: Request, demands: list[Demand], hit_tokens: int) -> None:
        for place, (choice, demand) in enumerate(zip(request.live, demands, strict=True)):
            self._add(choice, demand, 1 if place else choice.pending - hit_tokens)

    def _add(self, choice: Choice, demand: Demand, prefill_tokens: int) -> None:
        limits, spec = self._scheduler.limits, choice.request.spec
        decodes_from = self._step
        if prefill_tokens:
            self._prefill_done = max(self._step, self._prefill_done) + prefill_tokens / self._prefill_rate()
            decodes_from = max(self._step, ceil(self._prefill_done) - 1)
        tokens = self._remaining(spec.params, choice.num_output)
        gone = decodes_from + tokens + limits.collect_lag
        self._rows.append(_Row(choice.request, demand, self._step, decodes_from, gone, limits.collect_lag))

    def _advance(self, queue: list[Waiting]) -> bool:
        """Go on to the next step at which one may start; False when nothing runs.

        That is when a running choice ends, or passes its deadline; or in between, once the peak of a waiting one has
        moved past the others': from then on it fits, so bisection finds the step.
        """
        if not self._rows:
            return False
        end = min(row.gone for row in self._rows)
        deadline = min(row.deadline for row in self._rows)
        seconds = self._seconds_until(end)
        if self._now + seconds > deadline:
            end = self._step + max(1, ceil((end - self._step) * (deadline - self._now) / seconds))
        low, high = self._step, end
        if high - low > 1 and self._may_start(queue, high - 1):
            high -= 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._may_start(queue, middle) else (middle, high)
            self._now, self._step = self._now + self._seconds_until(high), high
            return True
        self._now, self._step = max(self._now + self._seconds_until(end), min(deadline, self._now + seconds)), end
        self._rows = [row for row in self._rows if row.gone > end and row.deadline > self._now]
        return True

    def _may_start(self, queue: list[Waiting], step: int) -> bool:
        return self._first_that_fits(queue, step, self._now + self._seconds_until(step), []) is not None

    def _seconds_until(self, end: int) -> float:
        decoding = [row for row in self._rows if row.decodes_from <= self._step]
        context = sum(row.demand.base + self._step - row.decodes_from for row in decoding)
        prefill = max(0.0, min(self._prefill_done, end) - self._step) * self._prefill_rate()
        return self._cost.seconds(end - self._step, len(decoding), context, prefill)

    def _prefill_rate(self) -> int:
        """Prompt tokens a step: what the decodes leave."""
        decoding = sum(row.decodes_from <= self._step for row in self._rows)
        return max(1, self._scheduler.limits.max_batch_tokens - decoding)

    def _tenant_allows(self, spec: GenerateRequest) -> bool:
        if not self._scheduler.running.is_shared_out(spec):
            return True
        running = {id(row.request): row.request.spec for row in self._rows}
        return self._scheduler.running.tenant_allows(spec, running.values())


def _size(demands: list[Demand], delay: int) -> tuple[int, ...]:
    """Of two requests, the one that is larger in every number holds more at any time, and longer."""
    first = demands[0]
    charged = -sum(demand.uncharged for demand in demands)
    return len(demands), first.base, first.limit, first.steps, max(d.steps for d in demands), charged, delay


def _is_least(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def _order(waiting: Waiting) -> tuple[int, float, int]:
    return waiting.order
