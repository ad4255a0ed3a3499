"""An engine without a model: it echoes the prompt, a token a step, when the test lets it; and counts what is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from weir.engine.errors import EngineFailedError, RequestError, UnavailableError
from weir.engine.queue_gate import QueueGate, Ticket
from weir.engine.records import BudgetSnapshot, EngineInfo, LoadStage, QueueOutlook, StepRecord
from weir.engine.request import (
    Admitted,
    ChoiceFinish,
    Delta,
    Done,
    Event,
    FinishReason,
    GenerateRequest,
    Timings,
    TokenLogprobs,
    Usage,
)
from weir.engine.tenants import Tenants
from weir.engine.unread import Meter
from weir.engine.validation import RequestLimits, validate, validate_before_prompt

INFO = EngineInfo(
    model_name="echo",
    model_path="/models/echo",
    architecture="EchoForCausalLM",
    dtype="float32",
    device="cpu",
    kernels="reference",
    vocab_size=256,
    max_model_len=64,
    block_size=4,
    kv_total_tokens=400,
    kv_bytes_per_token=8,
    max_batch_tokens=32,
    max_running=8,
    default_max_tokens=16,
    eos_token_ids=(0,),
)
LIMITS = RequestLimits(
    vocab_size=256,
    max_model_len=64,
    block_size=4,
    kv_blocks=100,
    max_running=8,
    max_choices=16,
    max_logprobs=20,
    max_stop_strings=16,
    max_stop_string_chars=256,
    max_logit_bias=1024,
)
IDLE = BudgetSnapshot(
    kv_total_tokens=400,
    kv_free_tokens=400,
    kv_used_tokens=0,
    kv_cached_tokens=0,
    kv_reserved_peak_tokens=0,
    running=0,
    queued=0,
    queued_tokens=0,
    estimated_wait_s=0.0,
    step=0,
)


@dataclass
class FakeProgress:
    """A heartbeat that tests set by hand."""

    busy: bool = False
    step_age_s: float = 0.0


class FakeStream:
    """Echoes the prompt to each choice in turn; counts itself in `engine.streams` until closed."""

    def __init__(self, engine: FakeEngine, request: GenerateRequest) -> None:
        self._engine = engine
        self.request = request
        self.request_id = request.request_id
        engine.streams.add(self)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    def close(self) -> None:
        self._engine.streams.discard(self)

    async def _events(self) -> AsyncIterator[Event]:
        request, params = self.request, self.request.params
        await self._engine.step(self._engine.admitting)
        prompt = request.prompt_token_ids
        yield Admitted(request.request_id, len(prompt), cached_tokens=2, queue_s=0.25, max_tokens=params.max_tokens)
        output = prompt[: params.max_tokens]
        ended = len(output) < params.max_tokens
        for position, token in enumerate(output):
            if position >= self._engine.ungated_tokens:
                await self._engine.step(self._engine.decoding)
            last = position == len(output) - 1
            for choice in range(request.n):
                yield Delta(
                    request.request_id,
                    choice,
                    token_ids=(token,),
                    text=chr(token),
                    logprobs=()
                    if params.logprobs is None
                    else (TokenLogprobs(token, -0.5, ((token, -0.5), (1, -2.0))),),
                    prompt_logprobs=self._prompt_logprobs() if position == 0 and choice == 0 else None,
                    finish=ChoiceFinish(FinishReason.STOP if ended else FinishReason.LENGTH) if last else None,
                )
        yield Done(
            request.request_id,
            Usage(len(prompt), request.n * len(output), cached_tokens=2),
            Timings(queue_s=0.25, prefill_s=0.5, first_token_s=0.75, total_s=1.5),
        )

    def _logprobs(self, token: int) -> tuple[TokenLogprobs, ...]:
        if self.request.params.logprobs is None:
            return ()
        return (TokenLogprobs(token, -0.5, ((token, -0.5), (1, -2.0))),)

    def _prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        if self.request.params.prompt_logprobs is None:
            return None
        return (None, *(TokenLogprobs(token, -1.0) for token in self.request.prompt_token_ids[1:]))


class FakeEngine:
    """The interface of EngineClient, and its validation. Clear `admitting` or `decoding` to hold streams there.

    The first `ungated_tokens` of each stream pass while `decoding` is clear.
    """

    def __init__(self, info: EngineInfo = INFO) -> None:
        self.info = info
        self.limits = replace(
            LIMITS, max_model_len=info.max_model_len, kv_blocks=info.kv_total_tokens // info.block_size
        )
        self.on_step: list[Callable[[StepRecord], None]] = []
        self.on_loading: list[Callable[[LoadStage], None]] = []
        self.budget = IDLE
        self.heartbeat = FakeProgress()
        self.gate = QueueGate(100, 10_000, Tenants(), lambda: self.budget, lambda: self.outlook, info.max_running)
        self.outlook = QueueOutlook()
        self.streams: set[FakeStream] = set()
        self.submitted: list[GenerateRequest] = []
        self.reservations: list[int] = []
        self.reserve_error: RequestError | None = None
        self.submit_error: Exception | None = None
        self.ungated_tokens = 0
        self.flushes = 0
        self.stopped = False
        self.failed: asyncio.Future[EngineFailedError] = asyncio.get_running_loop().create_future()
        self._loaded: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.admitting, self.decoding = asyncio.Event(), asyncio.Event()
        self.admitting.set()
        self.decoding.set()

    def load(self) -> None:
        self._loaded.set_result(self.info)

    def fail_to_load(self, error: EngineFailedError) -> None:
        self._loaded.set_exception(error)

    def die(self, detail: str) -> None:
        self.failed.set_result(EngineFailedError(detail))
        self.admitting.set()
        self.decoding.set()

    def start(self) -> None:
        return

    async def ready(self) -> EngineInfo:
        return await self._loaded

    def check(self, request: GenerateRequest) -> None:
        validate_before_prompt(request, self.limits)

    def reserve(self, tokens_upper_bound: int, tenant: str) -> Ticket:
        if not self._loaded.done():
            raise UnavailableError("MODEL_LOADING", 5.0)
        if self.reserve_error is not None:
            raise self.reserve_error
        ticket = self.gate.reserve(tokens_upper_bound, tenant)
        self.reservations.append(tokens_upper_bound)
        return ticket

    def validate(self, request: GenerateRequest) -> None:
        if self.submit_error is not None:
            raise self.submit_error
        validate(request, self.limits)

    def submit(self, request: GenerateRequest, ticket: Ticket, meter: Meter) -> FakeStream:
        self.submitted.append(request)
        return FakeStream(self, request)

    def snapshot(self) -> BudgetSnapshot:
        return self.budget

    def set_budget(self, **changes: int | float) -> None:
        self.budget = replace(self.budget, **changes)  # type: ignore[arg-type]

    def progress(self) -> FakeProgress:
        return self.heartbeat

    async def flush_prefix_cache(self) -> int:
        self.flushes += 1
        return 7

    async def stop(self, timeout_s: float) -> None:
        self.stopped = True

    async def step(self, gate: asyncio.Event) -> None:
        """Wait at a gate, and fail if the engine died meanwhile."""
        await gate.wait()
        if self.failed.done():
            raise self.failed.result()
