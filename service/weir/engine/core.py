"""The engine: submit and cancel requests, and step. Synchronous, single-threaded, no process or transport of its own.

The loop is plan, launch, collect, emit; docs/how-it-works.md walks through it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from weir.engine.blocks import BlockPool
from weir.engine.detokenizer import TextStream, TokenTable
from weir.engine.errors import CancelledError, DeadlineError, InvalidRequestError, RequestError, Violation
from weir.engine.plan import Chunk, StepPlan
from weir.engine.records import BudgetSnapshot, ChunkRecord, EngineInfo, PhaseTimes, StepRecord
from weir.engine.request import (
    Admitted,
    Choice,
    ChoiceFinish,
    Delta,
    Done,
    Event,
    Failed,
    GenerateRequest,
    Preempted,
    Request,
    Timings,
    TokenLogprobs,
    Usage,
)
from weir.engine.runner import PromptScores, Runner, StepTokens
from weir.engine.sampling_state import SamplingState
from weir.engine.scheduler import Scheduler
from weir.engine.stop import StopRule, accept_token
from weir.engine.tenants import Tenants
from weir.engine.validation import RequestLimits, validate
from weir.engine.wait_estimate import WaitEstimate


@dataclass(slots=True)
class _Text:
    """What a choice needs beside its tokens: its text, and when it ends."""

    stream: TextStream
    rule: StopRule


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What happened in one call of step(): the record is None when there was nothing to compute."""

    record: StepRecord | None
    events: list[Event]


class EngineCore:
    """Owns the scheduler, the runner and the live requests."""

    def __init__(
        self,
        info: EngineInfo,
        limits: RequestLimits,
        scheduler: Scheduler,
        runner: Runner,
        table: TokenTable,
        tenants: Tenants,
    ) -> None:
        self.info = info
        self._limits = limits
        self._scheduler = scheduler
        self._runner = runner
        self._table = table
        self._tenants = tenants
        self._requests: dict[str, Request] = {}
        self._events: list[Event] = []
        self._prompt_scores: dict[str, list[TokenLogprobs | None]] = {}
        self._wait = WaitEstimate()
        self._step = 0
        self._computed_tokens = 0
        self._hit_tokens = 0
        self._rejected = 0

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do."""
        return self._scheduler.has_work or bool(self._events)

    def submit(self, spec: GenerateRequest) -> None:
        """Queue a request. Raises InvalidRequestError, or DeadlineError when its deadline cannot be met."""
        try:
            if spec.request_id in self._requests:
                raise InvalidRequestError((Violation("request_id", f"{spec.request_id!r} is live already"),))
            validate(spec, self._limits, self._tenants.get(spec.tenant).kv_share)
            now = time.monotonic()
            if spec.deadline is not None and len(self._scheduler.waiting):
                expected = self._wait.seconds(self._scheduler.waiting.tokens)
                if now + expected > spec.deadline:
                    raise DeadlineError(now - spec.arrival, in_queue=True, estimated_wait_s=expected)
        except RequestError:
            self._rejected += 1
            raise
        self._requests[spec.request_id] = self._scheduler.submit(spec, now)

    def cancel(self, request_id: str) -> None:
        """End a request in any state; its blocks are free when this returns. Unknown and finished ids are fine."""
        request = self._requests.get(request_id)
        if request is not None:
            self._fail(request, CancelledError())

    def flush_prefix_cache(self) -> int:
        """Forget cached prefixes that nobody holds. Returns the blocks freed."""
        return self._scheduler.pool.flush()

    def take_events(self) -> list[Event]:
        """Events since the last call that no step has handed over (those of cancel)."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> BudgetSnapshot:
        """The budget now."""
        pool, waiting = self._scheduler.pool, self._scheduler.waiting
        return BudgetSnapshot(
            kv_total_tokens=pool.num_blocks * pool.block_size,
            kv_free_tokens=pool.num_free * pool.block_size,
            kv_used_tokens=pool.num_referenced * pool.block_size,
            kv_cached_tokens=pool.num_idle * pool.block_size,
            kv_reserved_peak_tokens=self._scheduler.reserved_peak() * pool.block_size,
            running=self._scheduler.num_running,
            queued=len(waiting),
            queued_tokens=waiting.tokens,
            estimated_wait_s=self._wait.seconds(waiting.tokens) if len(waiting) else 0.0,
            step=self._step,
            computed_tokens=self._computed_tokens,
            prefix_hit_tokens=self._hit_tokens,
        )

    def step(self) -> StepOutput:
        """Plan, launch, collect and emit one step. With nothing to compute, only events come back."""
        began_ns, t0 = time.time_ns(), time.perf_counter()
        now = time.monotonic()
        for request in self._scheduler.expired(now):
            in_queue = request.admitted_at is None
            self._fail(request, DeadlineError(now - request.spec.arrival, in_queue=in_queue))
        somebody_waited = len(self._scheduler.waiting) > 0
        plan = self._scheduler.plan(now)
        self._report_admissions(plan, now)
        t1 = time.perf_counter()
        launched = self._runner.launch(plan)
        t2 = time.perf_counter()
        tokens = self._runner.collect(launched)
        t3 = time.perf_counter()
        self._scheduler.collect(plan)
        finished = self._emit(plan, tokens)
        t4 = time.perf_counter()
        if somebody_waited:
            self._wait.observe(sum(r.spec.most_tokens for r in plan.admitted), t4 - t0)
        record = None
        if plan.chunks:
            self._step += 1
            self._computed_tokens += plan.num_tokens
            self._hit_tokens += plan.hit_tokens
            phases = PhaseTimes(t1 - t0, launched.build_s, t2 - t1 - launched.build_s, t3 - t2, t4 - t3)
            record = self._record(plan, finished, phases, began_ns, began_ns + int((t4 - t0) * 1e9))
        return StepOutput(record, self.take_events())

    def _report_admissions(self, plan: StepPlan, now: float) -> None:
        for request in plan.admitted:
            spec = request.spec
            resumed = request.choices[0].text is not None
            for choice in request.choices:
                if choice.text is None:
                    self._equip(choice)
            if spec.params.prompt_logprobs is not None and request.first_token_at is None:
                self._prompt_scores.setdefault(spec.request_id, [None] * len(spec.prompt_token_ids))
            if not resumed:
                self._events.append(
                    Admitted(
                        spec.request_id,
                        len(spec.prompt_token_ids),
                        request.cached_tokens,
                        now - spec.arrival,
                        spec.params.max_tokens,
                    )
                )
        self._events.extend(Preempted(request.request_id) for request in plan.preempted)

    def _equip(self, choice: Choice) -> None:
        spec, eos = choice.request.spec, self.info.eos_token_ids
        most = self.info.max_model_len - len(spec.prompt_token_ids) + 1
        choice.text = _Text(
            TextStream(self._table, spec.params.stop, spec.params.include_stop), StopRule(spec.params, eos, most)
        )
        choice.sampling = SamplingState(spec.params, spec.prompt_token_ids, eos, self._limits.vocab_size, choice.index)

    def _emit(self, plan: StepPlan, tokens: StepTokens) -> list[str]:
        """Take the sampled tokens in, send deltas, and end what is complete. Returns ids of finished requests."""
        now = time.monotonic()
        for scores in tokens.prompt_scores:
            self._keep_prompt_scores(scores)
        finished: list[str] = []
        for choice, token_id, logprobs in zip(tokens.choices, tokens.token_ids, tokens.logprobs, strict=True):
            request = choice.request
            if request.closed or choice.finish is not None:
                continue  # it ended while this step was on its way
            self._scheduler.append(choice, token_id)
            choice.sampling.append(token_id)
            if request.first_token_at is None:
                request.first_token_at = now
            text, finish = accept_token(choice.text.rule, choice.text.stream, token_id, choice.num_sampled)
            self._events.append(self._delta(choice, token_id, text, logprobs, finish))
            if finish is not None and self._scheduler.finish(choice, finish):
                finished.append(request.request_id)
                self._done(request, now)
        return finished

    def _delta(
        self, choice: Choice, token_id: int, text: str, logprobs: TokenLogprobs | None, finish: ChoiceFinish | None
    ) -> Delta:
        request_id = choice.request.request_id
        prompt_scores = None
        if self._prompt_scores and choice.index == 0:
            kept = self._prompt_scores.pop(request_id, None)
            prompt_scores = None if kept is None else tuple(kept)
        return Delta(
            request_id,
            choice.index,
            (token_id,),
            text,
            () if logprobs is None else (logprobs,),
            prompt_scores,
            finish,
        )

    def _keep_prompt_scores(self, scores: PromptScores) -> None:
        kept = self._prompt_scores.get(scores.choice.request.request_id)
        if kept is not None:
            kept[scores.first_token : scores.first_token + len(scores.logprobs)] = scores.logprobs

    def _done(self, request: Request, now: float) -> None:
        spec = request.spec
        del self._requests[request.request_id]
        admitted = request.admitted_at or now
        first = request.first_token_at or now
        self._events.append(
            Done(
                request.request_id,
                Usage(len(spec.prompt_token_ids), request.num_output, request.cached_tokens),
                Timings(
                    queue_s=admitted - spec.arrival,
                    prefill_s=first - admitted,
                    first_token_s=first - spec.arrival,
                    total_s=now - spec.arrival,
                ),
            )
        )

    def _fail(self, request: Request, error: RequestError) -> None:
        if self._scheduler.close(request):
            del self._requests[request.request_id]
            self._prompt_scores.pop(request.request_id, None)
            self._events.append(Failed(request.request_id, error))

    def _record(
        self, plan: StepPlan, finished: Sequence[str], phases: PhaseTimes, start_ns: int, end_ns: int
    ) -> StepRecord:
        pool: BlockPool = self._scheduler.pool
        waiting = self._scheduler.waiting
        decodes: list[ChunkRecord] = []
        prefills: list[ChunkRecord] = []
        for chunk in plan.chunks:
            (decodes if _is_decode(chunk) else prefills).append(
                ChunkRecord(chunk.choice.request.request_id, chunk.choice.index, chunk.start, chunk.length)
            )
        rejected, self._rejected = self._rejected, 0
        return StepRecord(
            step=self._step,
            start_unix_ns=start_ns,
            end_unix_ns=end_ns,
            phases=phases,
            decodes=tuple(decodes),
            prefills=tuple(prefills),
            prefix_hit_tokens=plan.hit_tokens,
            running=self._scheduler.num_running,
            queued=len(waiting),
            queued_tokens=waiting.tokens,
            oldest_queued_s=waiting.oldest_age_s(time.monotonic()),
            admitted=tuple(r.request_id for r in plan.admitted),
            finished=tuple(finished),
            preempted=tuple(r.request_id for r in plan.preempted),
            rejected=rejected,
            kv_total_tokens=pool.num_blocks * pool.block_size,
            kv_free_tokens=pool.num_free * pool.block_size,
            kv_used_tokens=pool.num_referenced * pool.block_size,
            kv_cached_tokens=pool.num_idle * pool.block_size,
            kv_reserved_peak_tokens=self._scheduler.reserved_peak() * pool.block_size,
        )


def _is_decode(chunk: Chunk) -> bool:
    return chunk.length == 1 and chunk.samples and chunk.start >= len(chunk.choice.request.spec.prompt_token_ids)
