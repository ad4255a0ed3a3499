"""The engine: submit and cancel requests, and step. Synchronous, single-threaded, no process or transport of its own.

The loop is plan, launch, collect, emit; docs/how-it-works.md walks through it. With a runner that runs a step ahead,
a step is launched before the one before it is collected, so the device never waits for the host.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from weir.engine.detokenizer import TextStart, TextStream, TokenTable
from weir.engine.errors import CancelledError, DeadlineError, InvalidRequestError, RequestError, Violation
from weir.engine.outlook import Outlook
from weir.engine.plan import StepPlan
from weir.engine.records import BudgetSnapshot, EngineInfo, QueueOutlook, StepRecord
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
from weir.engine.runner import PromptScores, StepRunner, StepTokens
from weir.engine.sampling_state import SamplingState
from weir.engine.scheduler import Scheduler
from weir.engine.step_report import StepInFlight, step_record
from weir.engine.stop import StopRule, accept_token
from weir.engine.tenants import Tenants
from weir.engine.validation import RequestLimits, validate


@dataclass(slots=True)
class _Text:
    """What a choice needs beside its tokens: its text, and when it ends."""

    stream: TextStream
    rule: StopRule


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What happened in one call of step(). record: of the step whose tokens came; idle: nothing was launched either."""

    record: StepRecord | None
    events: list[Event]
    idle: bool


class EngineCore:
    """Owns the scheduler, the runner and the live requests."""

    def __init__(
        self,
        info: EngineInfo,
        limits: RequestLimits,
        scheduler: Scheduler,
        runner: StepRunner,
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
        self._in_flight: StepInFlight | None = None
        self._unlaunched: StepPlan | None = None  # decisions that the record of the next step tells
        self._outlook = Outlook(scheduler, info.default_max_tokens)
        self._last_end: float | None = None
        self._step = 0
        self._computed_tokens = 0
        self._hit_tokens = 0
        self._rejected = 0

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do."""
        return self._scheduler.has_work or self._in_flight is not None or bool(self._events)

    def submit(self, spec: GenerateRequest) -> None:
        """Queue a request. Raises InvalidRequestError, or DeadlineError when its deadline cannot be met."""
        try:
            if spec.request_id in self._requests:
                raise InvalidRequestError((Violation("request_id", f"{spec.request_id!r} is live already"),))
            validate(spec, self._limits, self._tenants.get(spec.tenant).kv_share)
            now = time.monotonic()
            if spec.deadline is not None:
                least = self._outlook.least_wait_s(spec, now)
                if now + least > spec.deadline:
                    raise DeadlineError(now - spec.arrival, in_queue=True, estimated_wait_s=least)
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
            estimated_wait_s=self.outlook().wait_s(time.monotonic()),
            step=self._step,
            computed_tokens=self._computed_tokens,
            prefix_hit_tokens=self._hit_tokens,
        )

    def outlook(self) -> QueueOutlook:
        """What is to come for those who wait and for newcomers."""
        return self._outlook.now(time.monotonic())

    def step(self) -> StepOutput:
        """Plan and launch a step; collect and emit it, or the one before it where the runner runs a step ahead.

        With nothing to compute or to collect, only events come back.
        """
        began_ns, began, now = time.monotonic_ns(), time.perf_counter(), time.monotonic()
        for request in self._scheduler.expired(now):
            in_queue = request.admitted_at is None
            self._fail(request, DeadlineError(now - request.spec.arrival, in_queue=in_queue))
        plan = self._scheduler.plan(now)
        self._report_admissions(plan, now)
        plan_s = time.perf_counter() - began

        due, self._in_flight = self._in_flight, None
        record = None
        if due is not None and not (plan.chunks and self._runner.follows(plan)):
            record, due = self._collect(due), None
            plan = plan.without_ended()
        told = plan if self._unlaunched is None else plan.after(self._unlaunched)
        self._unlaunched = None if plan.chunks else told
        if plan.chunks:
            launch_began = time.perf_counter()
            launched = self._runner.launch(plan)
            step = StepInFlight(told, launched, began_ns, began, plan_s, launch_began)
            if self._runner.steps_ahead:
                self._in_flight = step
            else:
                due = step
        if due is not None:
            record = self._collect(due)
        return StepOutput(record, self.take_events(), idle=record is None and not plan.chunks)

    def _collect(self, step: StepInFlight) -> StepRecord:
        collect_began = time.perf_counter()
        tokens = self._runner.collect(step.launched)
        collected = time.perf_counter()
        self._scheduler.collect(step.plan)
        finished = self._emit(tokens)
        ended = time.perf_counter()
        self._outlook.observe_step(step.plan, ended - (self._last_end or step.began))
        self._last_end = ended if self._scheduler.has_work else None
        self._step += 1
        self._computed_tokens += step.plan.num_tokens
        self._hit_tokens += step.plan.hit_tokens
        rejected, self._rejected = self._rejected, 0
        phases = step.phases(collect_began, collected, ended)
        return step_record(self._step, step, phases, step.end_ns(ended), finished, rejected, self._scheduler)

    def _report_admissions(self, plan: StepPlan, now: float) -> None:
        for request in plan.admitted:
            spec = request.spec
            resumed = request.choices[0].text is not None
            if not resumed:
                start = self._table.after(spec.prompt_token_ids)
                for choice in request.choices:
                    self._equip(choice, start)
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

    def _equip(self, choice: Choice, start: TextStart) -> None:
        spec, eos = choice.request.spec, self.info.eos_token_ids
        most = self.info.max_model_len - len(spec.prompt_token_ids) + 1
        choice.text = _Text(
            TextStream(self._table, spec.params.stop, spec.params.include_stop, start),
            StopRule(spec.params, eos, most),
        )
        choice.sampling = SamplingState(spec.params, spec.prompt_token_ids, eos, self._limits.vocab_size, choice.index)

    def _emit(self, tokens: StepTokens) -> list[str]:
        """Take the sampled tokens in, send deltas, and end what is complete. Returns ids of finished requests."""
        now = time.monotonic()
        for scores in tokens.prompt_scores:
            if scores.choice.is_live:
                self._keep_prompt_scores(scores)
        finished: list[str] = []
        for choice, token_id, logprobs in zip(tokens.choices, tokens.token_ids, tokens.logprobs, strict=True):
            request = choice.request
            if not choice.is_live:
                continue  # it ended while this step was on its way
            self._scheduler.append(choice, token_id)
            choice.sampling.append(token_id)
            if request.first_token_at is None:
                request.first_token_at = now
            text, finish = accept_token(choice.text.rule, choice.text.stream, token_id, choice.num_sampled)
            self._events.append(self._delta(choice, token_id, text, logprobs, finish))
            if finish is None:
                continue
            self._outlook.ends.observe(request.spec.params, choice.num_sampled)
            if self._scheduler.finish(choice, finish):
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
