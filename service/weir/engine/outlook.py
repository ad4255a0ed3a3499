"""What is told of the wait: a forecast of the queue, made anew now and then, and the refusal of hopeless deadlines."""

from __future__ import annotations

import time

from weir.engine.ends import ExpectedEnds, earliest
from weir.engine.forecast import least_wait_s, starts
from weir.engine.plan import StepPlan
from weir.engine.records import QueueExit, QueueOutlook
from weir.engine.request import GenerateRequest, Request, SamplingParams
from weir.engine.scheduler import Scheduler
from weir.engine.step_cost import StepCost

_LEAST_AGE_S = 0.2
# Looking ahead may take this part of the engine's time.
_SHARE = 0.02
# A replay cannot tell exactly how prompts share the steps, and so who slips into a gap first.
_SURE = 0.8


class Outlook:
    """Owns what a forecast learns from: the cost of steps, and how much of max_tokens is used."""

    def __init__(self, scheduler: Scheduler, default_max_tokens: int) -> None:
        self._scheduler = scheduler
        self._typical = GenerateRequest("", (0,), SamplingParams(max_tokens=default_max_tokens))
        self._latest = QueueOutlook()
        self._stale_at = 0.0
        self._next_check = 0.0
        self.cost = StepCost()
        self.ends = ExpectedEnds()

    def now(self, now: float) -> QueueOutlook:
        """The outlook, at most about as old as fifty times what it costs to make."""
        if not self._scheduler.has_work:
            self._latest, self._stale_at = QueueOutlook(), 0.0
        elif now >= self._stale_at:
            began = time.perf_counter()
            self._latest = self._look(now)
            self._stale_at = now + max(_LEAST_AGE_S, (time.perf_counter() - began) / _SHARE)
        return self._latest

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """A step has run; from the end of the one before it, it took this long."""
        decodes = plan.chunks[: plan.num_single]
        context = sum(chunk.start for chunk in decodes)
        self.cost.observe(len(decodes), context, plan.num_tokens - len(decodes), seconds)

    def least_wait_s(self, spec: GenerateRequest, now: float) -> float:
        """Seconds that a newcomer surely waits; 0 where that was asked too often to be looked at."""
        if not self._scheduler.has_work or now < self._next_check:
            return 0.0
        began = time.perf_counter()
        wait_s = least_wait_s(self._scheduler, self.cost, now, Request(spec), earliest)
        self._next_check = now + (time.perf_counter() - began) / _SHARE
        return _SURE * wait_s

    def _look(self, now: float) -> QueueOutlook:
        newcomer = Request(self._typical)
        exits: list[QueueExit] = []
        for start in starts(self._scheduler, self.cost, now, self.ends.remaining, newcomer):
            if start.request is newcomer:
                return QueueOutlook(start.at, tuple(exits))
            spec = start.request.spec
            exits.append(QueueExit(start.at, spec.tenant, spec.most_tokens))
        # The newcomer stands behind all that was looked at, and comes at their pace.
        told = QueueOutlook(now, tuple(exits))
        waiting = self._scheduler.waiting
        return QueueOutlook(now + told.room_in_s(now, len(waiting), waiting.tokens), told.exits)
