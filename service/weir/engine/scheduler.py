"""Continuous batching: what the next step computes. Decodes first, the rest of the token budget to prefill chunks.

There is no phase: a choice has `pending` tokens, and a step computes as many of them as the budget allows. plan()
advances the choices as if the step had run, so that the next step can be planned while this one is on the device;
collect() takes the sampled tokens in.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from weir.engine.blocks import BlockHasher, BlockPool, blocks_for
from weir.engine.budget import (
    AdmissionPolicy,
    Demand,
    FuturePeak,
    ReserveEverything,
    SharedPrefix,
    blocks_needed,
    kv_tokens_needed,
    shareable_blocks,
)
from weir.engine.request import Choice, ChoiceFinish, GenerateRequest, Request
from weir.engine.tenants import Tenants
from weir.engine.waiting import Waiting, WaitingQueue


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `length` tokens of a choice from position `start`; `samples`: its next token comes out of this step."""

    choice: Choice
    start: int
    length: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. The first `num_single` chunks have one token each (decodes, and last single tokens of prompts)."""

    chunks: tuple[Chunk, ...]
    num_single: int
    admitted: tuple[Request, ...]
    preempted: tuple[Request, ...]
    hit_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes."""
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """See EngineSettings for the meaning of each; collect_lag is how many steps run before a step's tokens are seen."""

    max_running: int
    max_batch_tokens: int
    admission: str = "guaranteed"
    overcommit: float = 0.5
    preempt_lower_priority: bool = False
    bypass_scan: int = 16
    collect_lag: int = 0


class Scheduler:
    """Owns the queue and the running requests; the only one that takes blocks from the pool."""

    def __init__(
        self, limits: SchedulerLimits, pool: BlockPool, hasher: BlockHasher, waiting: WaitingQueue, tenants: Tenants
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting = waiting
        self.running: list[Request] = []  # in order of admission
        self._hasher = hasher
        self._tenants = tenants
        self._tenant_blocks: dict[str, int] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        self._submitted = 0
        self._peak: int | None = 0

    # -- requests in and out ------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running) or len(self.waiting) > 0

    @property
    def num_running(self) -> int:
        """Choices that run."""
        return sum(len(request.live) for request in self.running)

    def submit(self, spec: GenerateRequest, now: float) -> Request:
        """Queue a request. Raises ValueError when it can never fit: callers check first, with a better message."""
        if self.blocks_needed(spec) > self.pool.num_blocks or spec.n > self.limits.max_running:
            raise ValueError(f"{spec.request_id} can never fit: {self.blocks_needed(spec)} blocks, {spec.n} choices")
        request = Request(spec)
        self.waiting.push(request, now)
        self._submitted += 1
        if spec.deadline is not None:
            heapq.heappush(self._deadlines, (spec.deadline, self._submitted, request))
        return request

    def blocks_needed(self, spec: GenerateRequest) -> int:
        """Blocks this request holds when all its choices reach max_tokens."""
        return blocks_needed(len(spec.prompt_token_ids), spec.params.max_tokens, spec.n, self.pool.block_size)

    def close(self, request: Request) -> bool:
        """End a request in any state and free its blocks. False when it had ended before: closing is idempotent."""
        if request.closed:
            return False
        request.closed = True
        if self.waiting.remove(request.request_id) is None:
            self._stop(request)
        return True

    def expired(self, now: float) -> list[Request]:
        """Live requests whose deadline has passed since the last call."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if not request.closed:
                late.append(request)
        return late

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a live request."""
        while self._deadlines and self._deadlines[0][2].closed:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    # -- one step -----------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan:
        """Admit what fits, then choose the tokens of the next step. A step with nothing to do is legal."""
        preempted: list[Request] = []
        admitted, hit_tokens = self._admit(now, preempted)
        chunks, num_single = self._fit(now, preempted)
        for chunk in chunks:
            self._advance(chunk)
        return StepPlan(tuple(chunks), num_single, tuple(admitted), tuple(preempted), hit_tokens)

    def collect(self, plan: StepPlan) -> None:
        """The step has run: its full blocks can be found by others from now on."""
        for chunk in plan.chunks:
            choice, block_size = chunk.choice, self.pool.block_size
            end = chunk.start + chunk.length
            if not choice.blocks or end // block_size == chunk.start // block_size:
                continue
            self._hasher.extend(choice.hashes, choice.tokens, choice.request.spec.cache_salt, end // block_size)
            for index in range(chunk.start // block_size, end // block_size):
                self.pool.publish(choice.blocks[index], choice.hashes[index])

    def append(self, choice: Choice, token_id: int) -> None:
        """Take in the token that a collected step sampled."""
        choice.in_flight -= 1
        choice.tokens.append(token_id)

    def finish(self, choice: Choice, finish: ChoiceFinish) -> bool:
        """End a choice and free its blocks; True when its request is complete and closed."""
        choice.finish = finish
        self._release(choice)
        self._peak = None
        return not choice.request.live and self.close(choice.request)

    def reserved_peak(self) -> int:
        """Blocks that the running choices can hold at once; at most the pool under `guaranteed`."""
        if self._peak is None:
            self._peak = self._policy().peak()
        return self._peak

    # -- admission ----------------------------------------------------------------------------------------------

    def _admit(self, now: float, preempted: list[Request]) -> tuple[list[Request], int]:
        admitted: list[Request] = []
        hit_tokens = 0
        full = self.num_running >= self.limits.max_running
        if not self.waiting or (full and not self.limits.preempt_lower_priority):
            return admitted, hit_tokens
        policy = self._policy()
        passed: list[Waiting] = []
        for waiting in list(self.waiting.candidates(now)):
            request = waiting.request
            if not self._tenant_allows(request):
                continue
            hits = self._cached_prefix(request)
            if not self._fits(policy, request, hits):
                victims = self._victims_for(request, hits) if self.limits.preempt_lower_priority else []
                for victim in victims:
                    self._preempt(victim, now)
                    preempted.append(victim)
                if not victims:
                    passed.append(waiting)
                    if not self.waiting.may_be_passed(waiting, now) or len(passed) >= self.limits.bypass_scan:
                        break
                    continue
            self.waiting.admit(waiting)
            self._start(request, hits, now)
            for other in passed:
                self.waiting.count_pass(other)
            admitted.append(request)
            hit_tokens += len(hits) * self.pool.block_size
            policy = self._policy()
        return admitted, hit_tokens

    def _policy(self, without: Sequence[Request] = ()) -> AdmissionPolicy:
        kind = ReserveEverything if self.limits.admission == "reserve" else FuturePeak
        return kind(self._running_demands(without), self.pool.block_size, self.pool.num_blocks)

    def _fits(
        self, policy: AdmissionPolicy, request: Request, hits: list[int], without: Sequence[Request] = ()
    ) -> bool:
        slots = self.num_running - sum(len(r.live) for r in without) + (len(request.live) or request.spec.n)
        if slots > self.limits.max_running:
            return False
        ahead = sum(self._prefill_tokens(c) for r in self.running if r not in without for c in r.live)
        candidate = self._candidate_demands(request, len(hits) * self.pool.block_size, ahead)
        return policy.fits(candidate, self._shared_prefixes(hits, without))

    def _tenant_allows(self, request: Request) -> bool:
        tenant = self._tenants.get(request.spec.tenant)
        if tenant.kv_share >= 1.0:
            return True
        allowed = int(tenant.kv_share * self.pool.num_blocks)
        return self._tenant_blocks.get(tenant.name, 0) + self.blocks_needed(request.spec) <= allowed

    def _cached_prefix(self, request: Request) -> list[int]:
        """Blocks of the leading choice's tokens whose content is known; one token is always left to compute."""
        spec = request.spec
        if not self.pool.prefix_cache or (spec.params.prompt_logprobs is not None and request.num_output == 0):
            return []  # prompt_logprobs need the logits of every prompt position
        if not request.choices:
            request.choices = [Choice(request, index, list(spec.prompt_token_ids)) for index in range(spec.n)]
        leader = request.live[0]
        whole = shareable_blocks(len(leader.tokens), self.pool.block_size)
        self._hasher.extend(leader.hashes, leader.tokens, spec.cache_salt, whole)
        return self.pool.find(leader.hashes[:whole])

    def _start(self, request: Request, hits: list[int], now: float) -> None:
        spec = request.spec
        if not request.choices:
            request.choices = [Choice(request, index, list(spec.prompt_token_ids)) for index in range(spec.n)]
        leader, *siblings = request.live
        self.pool.hold(hits)
        leader.blocks = list(hits)
        leader.num_computed = len(hits) * self.pool.block_size
        if request.admitted_at is None:
            request.admitted_at = now
            request.cached_tokens = leader.num_computed
        for sibling in siblings:
            sibling.parked = True
        self.running.append(request)
        tenant = self._tenants.get(spec.tenant).name
        self._tenant_blocks[tenant] = self._tenant_blocks.get(tenant, 0) + self.blocks_needed(spec)
        self._unpark(request)
        self._peak = None

    # -- demands ------------------------------------------------------------------------------------------------

    def _running_demands(self, without: Sequence[Request] = ()) -> list[Demand]:
        """One demand a live choice; blocks with several holders are charged to the longest-lived one."""
        demands: list[tuple[Choice, Demand]] = []
        ahead = 0
        for request in self.running:
            if request in without:
                continue
            for choice in request.live:
                ahead += self._prefill_tokens(choice)
                demands.append((choice, self._demand(choice, ahead)))
        if self.pool.num_shared == 0 and all(not choice.parked for choice, _ in demands):
            return [demand for _, demand in demands]
        return self._charge_once(demands)

    def _charge_once(self, demands: list[tuple[Choice, Demand]]) -> list[Demand]:
        charged: set[int] = set()
        result = []
        for choice, demand in sorted(demands, key=lambda pair: -pair[1].steps):
            uncharged = 0
            for block in choice.blocks:
                if self.pool.refs(block) < 2:
                    break  # shared blocks are always a leading run
                uncharged += block in charged
                charged.add(block)
            if choice.parked:
                uncharged = shareable_blocks(len(choice.request.spec.prompt_token_ids), self.pool.block_size)
            result.append(Demand(demand.base, demand.limit, demand.steps, uncharged))
        return result

    def _candidate_demands(self, request: Request, hit_tokens: int, ahead: int) -> list[Demand]:
        spec = request.spec
        choices = request.live or [Choice(request, i, list(spec.prompt_token_ids)) for i in range(spec.n)]
        shared = shareable_blocks(len(spec.prompt_token_ids), self.pool.block_size)
        demands = []
        for position, choice in enumerate(choices):
            computed = hit_tokens if position == 0 else shared * self.pool.block_size
            ahead += choice.pending - computed
            demand = self._demand(choice, ahead, parked=position > 0)
            demands.append(Demand(demand.base, demand.limit, demand.steps, shared if position else 0))
        # The shared prompt blocks are charged to the leader, so it must be counted as living as long as any sibling.
        leader, longest = demands[0], max(d.steps for d in demands)
        demands[0] = Demand(leader.base, leader.limit, longest, leader.uncharged)
        return demands

    def _demand(self, choice: Choice, prefill_ahead: int, parked: bool = False) -> Demand:
        spec, length = choice.request.spec, len(choice.tokens) + choice.in_flight
        remaining = choice.remaining
        if self.limits.admission == "optimistic":
            remaining = max(1, int(remaining * self.limits.overcommit))
        limit = min(length - 1 + remaining, kv_tokens_needed(len(spec.prompt_token_ids), spec.params.max_tokens))
        prefill_steps = 1
        if choice.pending > 1 or choice.parked or parked:
            per_step = self.limits.max_batch_tokens - self.limits.max_running
            prefill_steps = blocks_for(max(prefill_ahead, 1), per_step) + (choice.parked or parked)
        steps = max(1, prefill_steps + remaining - 1) + self.limits.collect_lag
        return Demand(length - 1, limit, steps)

    def _prefill_tokens(self, choice: Choice) -> int:
        """Tokens of this choice that compete for the prefill part of the budget."""
        if choice.parked:
            prompt = len(choice.request.spec.prompt_token_ids)
            return choice.pending - shareable_blocks(prompt, self.pool.block_size) * self.pool.block_size
        return choice.pending if choice.pending > 1 else 0

    def _shared_prefixes(self, hits: list[int], without: Sequence[Request]) -> list[SharedPrefix]:
        """For the leading blocks among `hits` that running choices hold: how long they will be held."""
        held: dict[int, int] = {}  # number of leading blocks -> steps of the longest-lived holder
        if not hits or self.pool.refs(hits[0]) == 0:
            return []
        ahead = 0
        for request in self.running:
            if request in without:
                continue
            for choice in request.live:
                ahead += self._prefill_tokens(choice)
                common = 0
                for mine, theirs in zip(hits, choice.blocks, strict=False):
                    if mine != theirs:
                        break
                    common += 1
                if common:
                    held[common] = max(held.get(common, 0), self._demand(choice, ahead).steps)
        return _as_layers(held)

    # -- choosing tokens ----------------------------------------------------------------------------------------

    def _fit(self, now: float, preempted: list[Request]) -> tuple[list[Chunk], int]:
        """Chunks whose blocks the pool can give; preempts, or as a last resort stalls, under overcommitment."""
        while True:
            chunks, num_single = self._select()
            shortage = sum(self._growth(chunk) for chunk in chunks) - self.pool.num_available
            if shortage <= 0:
                return chunks, num_single
            victim = self._victim(self.running[1:])
            if victim is None:
                while shortage > 0:
                    chunk = chunks.pop()
                    shortage -= self._growth(chunk)
                    num_single -= chunk.length == 1 and len(chunks) < num_single
                if chunks:
                    return chunks, num_single
                victim = self.running[-1]
            self._preempt(victim, now)
            preempted.append(victim)

    def _select(self) -> tuple[list[Chunk], int]:
        singles: list[Chunk] = []
        longer: list[tuple[Choice, int]] = []
        for request in self.running:
            for choice in request.choices:
                if choice.remaining <= 0 or choice.parked:
                    continue
                if (pending := choice.pending) == 1:
                    singles.append(Chunk(choice, choice.num_computed, 1, True))
                elif pending > 1:
                    longer.append((choice, pending))
        left = self.limits.max_batch_tokens - len(singles)
        chunks: list[Chunk] = []
        for choice, pending in longer:
            if left == 0:
                break
            length = min(pending, left)
            left -= length
            chunks.append(Chunk(choice, choice.num_computed, length, length == pending))
        short = [chunk for chunk in chunks if chunk.length == 1]
        return singles + short + [c for c in chunks if c.length > 1], len(singles) + len(short)

    def _growth(self, chunk: Chunk) -> int:
        return blocks_for(chunk.start + chunk.length, self.pool.block_size) - len(chunk.choice.blocks)

    def _advance(self, chunk: Chunk) -> None:
        choice = chunk.choice
        growth = self._growth(chunk)
        if growth > 0:
            choice.blocks.extend(self.pool.take(growth))
        choice.num_computed += chunk.length
        choice.in_flight += chunk.samples
        if len(choice.request.choices) > 1:
            self._unpark(choice.request)

    def _unpark(self, request: Request) -> None:
        """Let parked choices share the prompt's full blocks once the leader's steps have covered them."""
        shared = shareable_blocks(len(request.spec.prompt_token_ids), self.pool.block_size)
        leader = next((c for c in request.live if not c.parked), None)
        if leader is None or leader.num_computed < shared * self.pool.block_size:
            return
        for choice in request.live:
            if choice.parked:
                choice.parked = False
                choice.blocks = leader.blocks[:shared]
                choice.num_computed = shared * self.pool.block_size
                self.pool.hold(choice.blocks)

    # -- giving back --------------------------------------------------------------------------------------------

    def _victim(self, requests: Sequence[Request]) -> Request | None:
        """Lowest priority, then latest admitted, of those that made progress since they were last preempted."""
        eligible = [r for r in requests if r.num_output > r.preempted_at_output]
        return max(enumerate(eligible), key=lambda item: (item[1].spec.priority, item[0]))[1] if eligible else None

    def _victims_for(self, request: Request, hits: list[int]) -> list[Request]:
        """Fewest requests of strictly lower priority without which `request` fits; none when that is not enough."""
        victims: list[Request] = []
        lower = [r for r in self.running if r.spec.priority > request.spec.priority]
        while (victim := self._victim([r for r in lower if r not in victims])) is not None:
            victims.append(victim)
            if self._fits(self._policy(victims), request, hits, victims):
                return victims
        return []

    def _preempt(self, request: Request, now: float) -> None:
        request.preempted_at_output = request.num_output
        self._stop(request)
        self.waiting.push_preempted(request, now)

    def _stop(self, request: Request) -> None:
        """Take a request off the running list; every block it holds goes back, once."""
        self.running.remove(request)
        for choice in request.choices:
            self._release(choice)
        tenant = self._tenants.get(request.spec.tenant).name
        self._tenant_blocks[tenant] -= self.blocks_needed(request.spec)
        if not self._tenant_blocks[tenant]:
            del self._tenant_blocks[tenant]
        self._peak = None

    def _release(self, choice: Choice) -> None:
        blocks, choice.blocks = choice.blocks, []
        choice.num_computed = 0
        choice.parked = False
        self.pool.release(blocks)


def _as_layers(held: dict[int, int]) -> list[SharedPrefix]:
    """Turn {leading blocks: steps} into additive layers: a block is covered as long as any longer prefix lives."""
    layers: list[SharedPrefix] = []
    covered = 0
    # A prefix of k blocks is held for the longest life among holders of at least k blocks.
    for blocks in sorted(held):
        steps = max(life for length, life in held.items() if length >= blocks)
        layers.append(SharedPrefix(blocks - covered, steps))
        covered = blocks
    return layers
