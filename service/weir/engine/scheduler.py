"""Continuous batching: what the next step computes. Decodes first, the rest of the token budget to prefill chunks.

There is no phase: a choice has `pending` tokens, and a step computes as many of them as the budget allows. plan()
advances the choices as if the step had run, so that the next step can be planned while this one is on the device;
collect() makes what it computed known to others.
"""

from __future__ import annotations

import heapq

from weir.engine.admission import Admission
from weir.engine.blocks import BlockHasher, BlockPool, blocks_for
from weir.engine.plan import Chunk, SchedulerLimits, StepPlan
from weir.engine.prefill_order import PrefillOrder
from weir.engine.request import Choice, ChoiceFinish, GenerateRequest, Request
from weir.engine.running import RunningSet
from weir.engine.tenants import Tenants
from weir.engine.waiting import WaitingQueue


class Scheduler:
    """Owns the live requests: the queue, the running set, and their deadlines."""

    def __init__(
        self, limits: SchedulerLimits, pool: BlockPool, hasher: BlockHasher, waiting: WaitingQueue, tenants: Tenants
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting = waiting
        self.running = RunningSet(pool, tenants)
        self._hasher = hasher
        self.admission = Admission(limits, pool, hasher, waiting, self.running)
        self._prefill_order = PrefillOrder(tenants)
        self._deadlines: list[tuple[float, int, Request]] = []
        self._submitted = 0
        self._peak: int | None = 0

    @property
    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return len(self.running) > 0 or len(self.waiting) > 0

    @property
    def num_running(self) -> int:
        """Choices that run."""
        return self.running.num_choices

    def submit(self, spec: GenerateRequest, now: float) -> Request:
        """Queue a request. Raises ValueError when it can never fit: callers check first, with a better message."""
        needed = self.running.blocks_needed(spec)
        if needed > self.pool.num_blocks or spec.n > self.limits.max_running:
            raise ValueError(f"{spec.request_id} can never fit: {needed} blocks, {spec.n} choices")
        request = Request(spec)
        self.waiting.push(request, now)
        self._submitted += 1
        if spec.deadline is not None:
            heapq.heappush(self._deadlines, (spec.deadline, self._submitted, request))
        return request

    def close(self, request: Request) -> bool:
        """End a request in any state and free its blocks. False when it had ended before: closing is idempotent."""
        if request.closed:
            return False
        request.closed = True
        if self.waiting.remove(request.request_id) is None:
            self.running.stop(request)
        self._peak = None
        return True

    def expired(self, now: float) -> list[Request]:
        """Live requests whose deadline has passed since the last call."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if not request.closed:
                late.append(request)
        self._forget_closed()
        return late

    def plan(self, now: float) -> StepPlan:
        """Admit what fits, then choose the tokens of the next step. A step with nothing to do is legal."""
        round_ = self.admission.admit(now)
        chunks, num_single = self._fit(now, round_.preempted)
        for chunk in chunks:
            self._advance(chunk)
        if round_.admitted or round_.preempted:
            self._peak = None
        return StepPlan(tuple(chunks), num_single, tuple(round_.admitted), tuple(round_.preempted), round_.hit_tokens)

    def collect(self, plan: StepPlan) -> None:
        """The step has run: its full blocks can be found by others from now on."""
        for chunk in plan.chunks:
            choice, block_size = chunk.choice, self.pool.block_size
            end = chunk.start + chunk.length
            if not choice.blocks or end // block_size == chunk.start // block_size:
                continue
            spec = choice.request.spec
            self._hasher.extend(choice.hashes, choice.tokens, spec.tenant, spec.cache_salt, end // block_size)
            for index in range(chunk.start // block_size, end // block_size):
                self.pool.publish(choice.blocks[index], choice.hashes[index])

    def append(self, choice: Choice, token_id: int) -> None:
        """Take in the token that a collected step sampled."""
        choice.in_flight -= 1
        choice.tokens.append(token_id)

    def finish(self, choice: Choice, finish: ChoiceFinish) -> bool:
        """End a choice and free its blocks; True when its request is complete and closed.

        A token that is still in flight does not count any more. A step that is on its way may still write to the
        blocks: whoever takes them is computed by a later step, and steps run in the order of their launch.
        """
        choice.finish = finish
        choice.in_flight = 0
        self.running.release(choice)
        self._peak = None
        return not choice.request.live and self.close(choice.request)

    def reserved_peak(self) -> int:
        """Blocks that the running choices can hold at once; at most the pool under `guaranteed`."""
        if self._peak is None:
            self._peak = self.admission.reserved_peak()
        return self._peak

    def _fit(self, now: float, preempted: list[Request]) -> tuple[list[Chunk], int]:
        """Chunks whose blocks the pool can give; preempts, or as a last resort stalls, under overcommitment."""
        while True:
            chunks, num_single = self._select()
            shortage = sum(self._growth(chunk) for chunk in chunks) - self.pool.num_available
            if shortage <= 0:
                return chunks, num_single
            oldest, *_, latest = [*self.running, *self.running]
            victim = self.running.victim([oldest])
            if victim is None:
                while shortage > 0:
                    chunk = chunks.pop()
                    shortage -= self._growth(chunk)
                    num_single = min(num_single, len(chunks))
                if chunks:
                    return chunks, num_single
                victim = latest
            self.admission.preempt(victim, now)
            preempted.append(victim)

    def _select(self) -> tuple[list[Chunk], int]:
        singles: list[Chunk] = []
        longer: list[Choice] = []
        for request in self.running:
            for choice in request.choices:
                if choice.remaining <= 0 or choice.parked:
                    continue
                if (pending := choice.pending) == 1:
                    singles.append(Chunk(choice, choice.num_computed, 1, True))
                elif pending > 1:
                    longer.append(choice)
        left = self.limits.max_batch_tokens - len(singles)
        chunks: list[Chunk] = []
        for choice in self._prefill_order.sort(longer) if longer else ():
            if left == 0:
                break
            length = min(choice.pending, left)
            left -= length
            self._prefill_order.count(choice, length)
            chunks.append(Chunk(choice, choice.num_computed, length, length == choice.pending))
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
            self.running.unpark(choice.request)

    def _forget_closed(self) -> None:
        """Requests that ended before their deadline leave the heap when they are most of it."""
        live = len(self.running) + len(self.waiting)
        if len(self._deadlines) > 2 * live + 64:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].closed]
            heapq.heapify(self._deadlines)
