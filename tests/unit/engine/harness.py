"""A step-by-step run of the torch-free core, with a made-up model, that checks every invariant after every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from weir.engine.blocks import BlockHasher, BlockPool, blocks_for
from weir.engine.plan import SchedulerLimits, StepPlan
from weir.engine.request import Choice, ChoiceFinish, FinishReason, GenerateRequest, Request, SamplingParams
from weir.engine.scheduler import Scheduler
from weir.engine.tenants import Tenant, Tenants
from weir.engine.waiting import WaitingQueue

EOS = 1


def spec(
    request_id: str,
    prompt: int | tuple[int, ...],
    max_tokens: int,
    *,
    n: int = 1,
    priority: int = 5,
    deadline: float | None = None,
    tenant: str = "",
    cache_salt: str = "",
) -> GenerateRequest:
    """A request with `prompt` tokens (unique to it when only a length is given)."""
    if isinstance(prompt, int):
        start = sum(map(ord, request_id)) * 1000 + 10
        prompt = tuple(range(start, start + prompt))
    return GenerateRequest(
        request_id,
        prompt,
        SamplingParams(max_tokens=max_tokens, temperature=0.0),
        n=n,
        priority=priority,
        deadline=deadline,
        tenant=tenant,
        cache_salt=cache_salt,
    )


def make_scheduler(
    num_blocks: int = 40,
    block_size: int = 4,
    *,
    max_running: int = 8,
    max_batch_tokens: int = 32,
    admission: str = "guaranteed",
    overcommit: float = 0.5,
    preempt_lower_priority: bool = False,
    prefix_cache: bool = True,
    bypass_limit: int = 4,
    bypass_age_s: float = 1000.0,
    tenants: tuple[Tenant, ...] = (),
    collect_lag: int = 0,
) -> Scheduler:
    """A scheduler over a fresh pool."""
    known = Tenants(tenants)
    return Scheduler(
        SchedulerLimits(
            max_running,
            max_batch_tokens,
            admission,
            overcommit,
            preempt_lower_priority,
            collect_lag=collect_lag,
        ),
        BlockPool(num_blocks, block_size, prefix_cache),
        BlockHasher(block_size, key=b"test", tenants=known),
        WaitingQueue(known, bypass_limit, bypass_age_s),
        known,
    )


@dataclass
class Simulation:
    """Runs steps on a clock of one second a step. `ends` says after how many tokens a request's choice samples EOS.

    Every sampled token depends on the choice and its position only, as a model's would.
    """

    scheduler: Scheduler
    ends: dict[str, int] = field(default_factory=dict)
    now: float = 0.0
    done: dict[str, str] = field(default_factory=dict)
    admitted_at: dict[str, float] = field(default_factory=dict)
    submitted_at: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0
    outputs: dict[str, list[int]] = field(default_factory=dict)
    live: dict[str, Request] = field(default_factory=dict)
    written: dict[int, list[int]] = field(default_factory=dict)
    _in_flight: list[StepPlan] = field(default_factory=list)

    def submit(self, request: GenerateRequest) -> None:
        self.live[request.request_id] = self.scheduler.submit(request, self.now)
        self.submitted_at[request.request_id] = self.now

    def close(self, request_id: str, why: str) -> None:
        request = self.live.pop(request_id, None)
        if request is not None:
            assert self.scheduler.close(request)
            self._terminal(request_id, why)

    def step(self) -> StepPlan:
        for request in self.scheduler.expired(self.now):
            self.close(request.request_id, "deadline")
        running_before = [c for r in self.scheduler.running for c in r.live if c.pending == 1 and c.remaining > 0]
        promised = self.scheduler.reserved_peak()
        plan = self.scheduler.plan(self.now)
        self._check_plan(plan, running_before)
        if self.scheduler.limits.admission == "guaranteed" and not plan.admitted:
            assert self.scheduler.pool.num_referenced <= promised, "more blocks in use than the formula said"
        for request in plan.admitted:
            self.admitted_at.setdefault(request.request_id, self.now)
        self.preemptions += len(plan.preempted)
        self._write_kv(plan)
        self._in_flight.append(plan)
        self.now += 1.0
        if len(self._in_flight) > self.scheduler.limits.collect_lag or not plan.chunks:
            while self._in_flight and (len(self._in_flight) > self.scheduler.limits.collect_lag or not plan.chunks):
                self._collect(self._in_flight.pop(0))
        self.check()
        return plan

    def run(self, most_steps: int = 10_000) -> None:
        for _ in range(most_steps):
            if not self.scheduler.has_work and not self._in_flight:
                return
            self.step()
        raise AssertionError(f"still working after {most_steps} steps: {self.live.keys()}")

    def _collect(self, plan: StepPlan) -> None:
        self.scheduler.collect(plan)
        for chunk in plan.chunks:
            choice = chunk.choice
            request_id = choice.request.request_id
            if not chunk.samples or choice.finish is not None or choice.request.closed:
                continue
            token = self._token(choice, len(choice.tokens))
            self.scheduler.append(choice, token)
            reason = FinishReason.STOP if token == EOS else FinishReason.LENGTH
            output = len(choice.tokens) - len(choice.request.spec.prompt_token_ids)
            if token == EOS or output >= choice.request.spec.params.max_tokens:
                self.outputs[f"{request_id}/{choice.index}"] = list(choice.tokens)
                if self.scheduler.finish(choice, ChoiceFinish(reason)):
                    del self.live[request_id]
                    self._terminal(request_id, "done")

    def _terminal(self, request_id: str, why: str) -> None:
        assert request_id not in self.done, f"{request_id} got two terminal events"
        self.done[request_id] = why

    # -- what must always hold ----------------------------------------------------------------------------------

    def _check_plan(self, plan: StepPlan, decodes_before: list[Choice]) -> None:
        limits = self.scheduler.limits
        assert plan.num_tokens <= limits.max_batch_tokens
        assert all(c.length == 1 for c in plan.chunks[: plan.num_single])
        assert all(c.length > 1 for c in plan.chunks[plan.num_single :])
        assert len({id(c.choice) for c in plan.chunks}) == len(plan.chunks)
        if limits.admission != "optimistic" and not limits.preempt_lower_priority:
            assert not plan.preempted
            scheduled = {id(c.choice) for c in plan.chunks}
            missed = [c for c in decodes_before if id(c) not in scheduled and not c.request.closed]
            assert not missed, "a running decode did not advance"

    def _write_kv(self, plan: StepPlan) -> None:
        """Play the model: write what each position holds, and check that everything attended to is really there."""
        size = self.scheduler.pool.block_size
        for chunk in plan.chunks:
            choice = chunk.choice
            for position in range(chunk.start, chunk.start + chunk.length):
                block = choice.blocks[position // size]
                slot = self.written.setdefault(block, [0] * size)
                slot[position % size] = self._content(choice, position)
        for chunk in plan.chunks:
            choice = chunk.choice
            for position in range(chunk.start + chunk.length):
                held = self.written[choice.blocks[position // size]][position % size]
                assert held == self._content(choice, position), "attends to another sequence's KV"

    def _token(self, choice: Choice, position: int) -> int:
        """What is, or will be, at this position: it depends on the request, the choice and the position only."""
        prompt = choice.request.spec.prompt_token_ids
        if position < len(prompt):
            return prompt[position]
        if position - len(prompt) + 1 >= self.ends.get(choice.request.request_id, 10**9):
            return EOS
        return 100 + choice.index * 7 + position * 3

    def _content(self, choice: Choice, position: int) -> int:
        """Stands for the KV of a position: a function of the salt and of every token up to it."""
        tokens = tuple(self._token(choice, p) for p in range(position + 1))
        return hash((choice.request.spec.cache_salt, tokens))

    def check(self) -> None:
        pool, scheduler = self.scheduler.pool, self.scheduler
        pool.check()
        held: dict[int, int] = {}
        for request in scheduler.running:
            assert not request.closed
            for choice in request.choices:
                if choice.finish is not None:
                    assert not choice.blocks
                assert choice.num_computed <= len(choice.tokens) + choice.in_flight
                assert len(choice.blocks) == blocks_for(choice.num_computed, pool.block_size)
                for block in choice.blocks:
                    held[block] = held.get(block, 0) + 1
        assert all(pool.refs(b) == held.get(b, 0) for b in range(1, pool.num_blocks + 1))
        for request in scheduler.waiting:
            assert not any(c.blocks for c in request.choices), "a waiting request owns blocks"
        if scheduler.limits.admission == "guaranteed":
            assert scheduler.reserved_peak() <= pool.num_blocks
        assert scheduler.num_running <= scheduler.limits.max_running
        if not scheduler.has_work:
            assert pool.num_referenced == 0
