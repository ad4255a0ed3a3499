"""Who starts now: waiting requests in their order, each against the budget, with bounded bypass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.engine.blocks import BlockHasher, BlockPool
from weir.engine.budget import AdmissionPolicy, Demand, FuturePeak, ReserveEverything, shareable_blocks
from weir.engine.demands import Demands
from weir.engine.plan import SchedulerLimits
from weir.engine.request import Choice, Request
from weir.engine.running import RunningSet
from weir.engine.waiting import Waiting, WaitingQueue


@dataclass(slots=True)
class AdmissionRound:
    """What one round did."""

    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    hit_tokens: int = 0


class Admission:
    """Moves requests from the queue to the running set, and back when they are preempted."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: BlockPool,
        hasher: BlockHasher,
        waiting: WaitingQueue,
        running: RunningSet,
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._hasher = hasher
        self._waiting = waiting
        self._running = running
        self.demands = Demands(limits, pool)

    def reserved_peak(self) -> int:
        """Blocks that the running choices can hold at once; at most the pool under `guaranteed`."""
        return self._policy().peak()

    def admit(self, now: float) -> AdmissionRound:
        """Start every waiting request that may start. One that does not fit changes nothing."""
        result = AdmissionRound()
        full = self._running.num_choices >= self._limits.max_running
        if not len(self._waiting) or (full and not self._limits.preempt_lower_priority):
            return result
        policy = self._policy()
        passed: list[Waiting] = []
        for waiting in list(self._waiting.candidates(now)):
            request = waiting.request
            if not self._running.tenant_allows(request.spec):
                continue
            hits = self.cached_prefix(request)
            if not self._fits(policy, request, hits):
                victims = self._victims_for(request, hits) if self._limits.preempt_lower_priority else []
                for victim in victims:
                    self.preempt(victim, now)
                result.preempted += victims
                if not victims:
                    passed.append(waiting)
                    if not self._waiting.may_be_passed(waiting, now) or len(passed) >= self._limits.bypass_scan:
                        break
                    continue
            self._waiting.admit(waiting)
            self._start(request, hits, now)
            for other in passed:
                self._waiting.count_pass(other)
            result.admitted.append(request)
            result.hit_tokens += len(hits) * self._pool.block_size
            policy = self._policy()
        return result

    def preempt(self, request: Request, now: float) -> None:
        """Give a running request's blocks back and queue it to be resumed."""
        request.preempted_at_output = request.num_output
        self._running.stop(request)
        self._waiting.push_preempted(request, now)

    def _start(self, request: Request, hits: list[int], now: float) -> None:
        if request.admitted_at is None:
            request.admitted_at = now
            request.cached_tokens = len(hits) * self._pool.block_size
        self._running.start(request, hits)

    def policy_for(self, demands: Sequence[Demand]) -> AdmissionPolicy:
        """The configured policy beside choices with these demands."""
        kind = ReserveEverything if self._limits.admission == "reserve" else FuturePeak
        return kind(demands, self._pool.block_size, self._pool.num_blocks)

    def _policy(self, without: Sequence[Request] = ()) -> AdmissionPolicy:
        return self.policy_for(self.demands.of_running(r for r in self._running if r not in without))

    def _fits(
        self, policy: AdmissionPolicy, request: Request, hits: list[int], without: Sequence[Request] = ()
    ) -> bool:
        running = [other for other in self._running if other not in without]
        if sum(len(other.live) for other in [*running, request]) > self._limits.max_running:
            return False
        candidate = self.demands.of_candidate(request, len(hits) * self._pool.block_size, self.demands.backlog(running))
        return policy.fits(candidate.demands, self.demands.shared_prefixes(hits, running), candidate.delay)

    def cached_prefix(self, request: Request) -> list[int]:
        """Blocks of the leading choice's tokens whose content is known; one token is always left to compute.

        A request that waits for the first time gets its choices here.
        """
        spec = request.spec
        if not request.choices:
            request.choices = [Choice(request, index, list(spec.prompt_token_ids)) for index in range(spec.n)]
        if not self._pool.prefix_cache or (spec.params.prompt_logprobs is not None and request.num_output == 0):
            return []  # prompt_logprobs need the logits of every prompt position
        leader = request.live[0]
        whole = shareable_blocks(len(leader.tokens), self._pool.block_size)
        self._hasher.extend(leader.hashes, leader.tokens, spec.tenant, spec.cache_salt, whole)
        return self._pool.find(leader.hashes[:whole])

    def _victims_for(self, request: Request, hits: list[int]) -> list[Request]:
        """Fewest requests of strictly lower priority without which `request` fits; none when that is not enough."""
        victims: list[Request] = []
        while (victim := self._running.victim(victims, lower_than=request.spec.priority)) is not None:
            victims.append(victim)
            if self._fits(self._policy(victims), request, hits, victims):
                return victims
        return []
