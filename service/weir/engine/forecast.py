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

from weir.engine.budget import AdmissionPolicy, Demand
from weir.engine.ends import Remaining
from weir.engine.request import Choice, Request
from weir.engine.scheduler import Scheduler
from weir.engine.step_cost import StepCost
from weir.engine.waiting import Waiting

# What one replay looks at, at most: waiting requests, and questions to the admission policy (about 50 us each).
_MOST_WAITING = 128
_MOST_QUESTIONS = 256
# Between two ends a request may begin to fit, as its own peak moves past the others': looked for in so many parts.
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Start:
    """A request starts at this time of time.monotonic(). not_before: the last time looked at when it did not fit."""

    at: float
    not_before: float
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
        at = start.not_before
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
        steps, made = self.demand.steps - (step - self.since), step - self.decodes_from
        if made <= 0:
            return replace(self.demand, steps=max(1, steps))
        base = self.demand.base + made
        return replace(self.demand, base=base, steps=max(1, min(steps, self.demand.limit - base + self.lag)))


class _Replay:
    def __init__(self, scheduler: Scheduler, cost: StepCost, now: float, remaining: Remaining) -> None:
        self._scheduler = scheduler
        self._cost = cost
        self._remaining = remaining
        self._now = self._not_before = now
        self._step = 0
        self._policy: AdmissionPolicy | None = None
        self._prefill_done = 0.0  # the step at which all prompt tokens admitted so far are computed
        self._questions = 0
        self._parts_left = 0
        self._rows: list[_Row] = []
        demands = scheduler.admission.demands.of_choices(scheduler.running)
        order = {id(request): place for place, request in enumerate(scheduler.running)}
        for choice, demand in sorted(demands, key=lambda pair: order[id(pair[0].request)]):
            self._add(choice, demand, 0 if choice.pending == 1 else choice.pending)

    def run(self, queue: list[Waiting]) -> Iterator[Start]:
        while queue:
            started = self._admit(queue)
            for waiting in started:
                queue.remove(waiting)
                yield Start(self._now, self._not_before, waiting.request)
            if self._questions > _MOST_QUESTIONS or not self._advance():
                return

    def _admit(self, queue: list[Waiting]) -> list[Waiting]:
        """Start what fits now."""
        waiting_queue, limits = self._scheduler.waiting, self._scheduler.limits
        started: list[Waiting] = []
        passed: list[Waiting] = []
        for waiting in list(waiting_queue.order_at(queue, self._now)):
            spec = waiting.request.spec
            if (spec.deadline is not None and spec.deadline < self._now) or not self._tenant_allows(waiting.request):
                continue
            if self._start(waiting.request):
                started.append(waiting)
                for other in passed:
                    other.passed += 1
                continue
            passed.append(waiting)
            if not waiting_queue.may_be_passed(waiting, self._now) or len(passed) >= limits.bypass_scan:
                break
        return started

    def _start(self, request: Request) -> bool:
        """Run the request from now on if it fits, or if it may evict others (their return is not played)."""
        admission, limits, pool = self._scheduler.admission, self._scheduler.limits, self._scheduler.pool
        hits = admission.cached_prefix(request)
        held = sum(pool.refs(block) > 0 for block in hits)
        ahead = ceil(max(0.0, self._prefill_done - self._step) * self._prefill_rate())
        first, *others = admission.demands.of_candidate(request, len(hits) * pool.block_size, ahead)
        demands = [replace(first, uncharged=held), *others]
        evicts = limits.preempt_lower_priority and any(
            row.request.spec.priority > request.spec.priority for row in self._rows
        )
        if not evicts:
            if len(self._rows) + len(demands) > limits.max_running:
                return False
            self._questions += 1
            if self._policy is None:
                self._policy = admission.policy_for([row.demand_at(self._step) for row in self._rows])
            if not self._policy.fits(demands):
                return False
        for choice, demand in zip(request.live, demands, strict=True):
            self._add(choice, demand, choice.pending - len(hits) * pool.block_size if choice is request.live[0] else 1)
        return True

    def _add(self, choice: Choice, demand: Demand, prefill_tokens: int) -> None:
        limits, spec = self._scheduler.limits, choice.request.spec
        decodes_from = self._step
        if prefill_tokens:
            self._prefill_done = max(self._step, self._prefill_done) + prefill_tokens / self._prefill_rate()
            decodes_from = max(self._step, ceil(self._prefill_done) - 1)
        tokens = self._remaining(spec.params, choice.num_output)
        gone = decodes_from + tokens + limits.collect_lag
        self._rows.append(_Row(choice.request, demand, self._step, decodes_from, gone, limits.collect_lag))
        self._policy = None

    def _advance(self) -> bool:
        """Go on towards the next end or deadline of a running choice; False when nothing runs."""
        if not self._rows:
            return False
        next_end = min(row.gone for row in self._rows)
        if self._parts_left == 0:
            self._parts_left = _PARTS
        end = self._step + ceil((next_end - self._step) / self._parts_left)
        self._parts_left = 0 if end == next_end else self._parts_left - 1
        seconds = self._seconds_until(end)
        deadline = min(row.deadline for row in self._rows)
        if self._now + seconds > deadline:
            end = self._step + max(1, ceil((end - self._step) * (deadline - self._now) / seconds))
            seconds = max(self._seconds_until(end), deadline - self._now)
        self._not_before, self._now, self._step = self._now, self._now + seconds, end
        self._policy = None
        self._rows = [row for row in self._rows if row.gone > end and row.deadline > self._now]
        return True

    def _seconds_until(self, end: int) -> float:
        decoding = [row for row in self._rows if row.decodes_from <= self._step]
        context = sum(row.demand_at(self._step).base for row in decoding)
        prefill = max(0.0, min(self._prefill_done, end) - self._step) * self._prefill_rate()
        return self._cost.seconds(end - self._step, len(decoding), context, prefill)

    def _prefill_rate(self) -> int:
        """Prompt tokens a step: what the decodes leave."""
        decoding = sum(row.decodes_from <= self._step for row in self._rows)
        return max(1, self._scheduler.limits.max_batch_tokens - decoding)

    def _tenant_allows(self, request: Request) -> bool:
        running = {id(row.request): row.request.spec for row in self._rows}
        return self._scheduler.running.tenant_allows(request.spec, running.values())


def _order(waiting: Waiting) -> tuple[int, float, int]:
    return waiting.order
