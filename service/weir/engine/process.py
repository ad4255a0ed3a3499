"""The handle on the engine process that the server's event loop holds.

Messages go over two pipes; threads do the blocking reads and writes, so that neither the event loop nor a step ever
waits for the other side.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker

from weir.config import Settings
from weir.engine.errors import EngineFailedError, UnavailableError, WrongSettingsError
from weir.engine.heartbeat import Heartbeat, Progress
from weir.engine.messages import (
    Cancel,
    Fatal,
    Flush,
    Flushed,
    FromEngine,
    Loading,
    Output,
    Ready,
    Stop,
    Submit,
    ToEngine,
)
from weir.engine.openmp import sleep_between_steps
from weir.engine.queue_gate import QueueGate, Ticket
from weir.engine.records import BudgetSnapshot, EngineInfo, LoadStage, QueueOutlook, StepRecord
from weir.engine.request import Admitted, Done, Event, Failed, GenerateRequest
from weir.engine.tenants import tenants_of
from weir.engine.unread import Meter, UnreadEvents, held_bytes, prompt_scores_bytes
from weir.engine.validation import RequestLimits, validate, validate_before_prompt
from weir.engine.worker import engine_main

_NO_BUDGET = BudgetSnapshot(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0)


class RequestStream:
    """The events of one request, for one reader; `meter` counts those that the reader has not done with.

    `request_id` is the engine's: unlike the caller's where another live request is called the same.
    """

    def __init__(self, client: EngineClient, request_id: str, ticket: Ticket, meter: Meter) -> None:
        self._client = client
        self.request_id = request_id
        self._ticket = ticket
        self._meter = meter
        self._unread = UnreadEvents()
        self._unread_bytes = self._exempt_bytes = 0
        self._more = asyncio.Event()
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events up to Done, those of one choice joined that came meanwhile.

        Raises the RequestError of a request that failed.
        """
        while True:
            if not self._unread:
                self._more.clear()
                await self._more.wait()
            event = self._unread.pop()
            if isinstance(event, Failed):
                raise event.error
            yield event
            self._count(-held_bytes(event), -prompt_scores_bytes(event))
            if isinstance(event, Done):
                return

    def close(self) -> None:
        """Cancel the request unless it has ended, and drop what nobody read. Idempotent."""
        self._ticket.release()
        self._unread = UnreadEvents()
        self._count(-self._unread_bytes, -self._exempt_bytes)
        if not self._ended:
            self._ended = True
            self._client._to_send.put(Cancel(self.request_id))

    def _push(self, event: Event) -> None:
        if isinstance(event, Admitted | Done | Failed):
            self._ticket.release()
        if not self._ended:
            self._ended = isinstance(event, Done | Failed)
            more = self._unread.push(event)
            self._more.set()
            self._count(more, prompt_scores_bytes(event))

    def _count(self, num_bytes: int, exempt_bytes: int) -> None:
        self._unread_bytes += num_bytes
        self._exempt_bytes += exempt_bytes
        self._meter.add(num_bytes, exempt_bytes)


class EngineClient:
    """Starts the engine process, hands it requests and hands out their events. Lives on one event loop."""

    def __init__(self, settings: Settings, prepare: Callable[[], None] | None = None) -> None:
        """prepare: called in the engine's process before anything else; it must be picklable."""
        context = multiprocessing.get_context("spawn")
        self._heartbeat = Heartbeat(context)
        inbox_read, self._inbox = context.Pipe(duplex=False)
        self._outbox, outbox_write = context.Pipe(duplex=False)
        self._childs_ends = (inbox_read, outbox_write)
        self._process = context.Process(
            target=engine_main, args=(settings, inbox_read, outbox_write, self._heartbeat, prepare), daemon=True
        )
        self._tenants = tenants_of(settings.engine)
        engine = settings.engine
        self._gate = QueueGate(
            engine.max_queue_requests,
            engine.max_queue_tokens,
            self._tenants,
            lambda: self._budget,
            lambda: self._outlook,
            engine.max_running,
        )
        self._to_send: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._streams: dict[str, RequestStream] = {}
        self._flushes: list[asyncio.Future[int]] = []
        self._budget = _NO_BUDGET
        self._outlook = QueueOutlook()
        self._info: EngineInfo | None = None
        self._limits: RequestLimits | None = None
        self._fatal: Fatal | None = None
        self._stopping = False
        self._heard_at = self._asked_at = 0.0
        self.on_step: list[Callable[[StepRecord], None]] = []
        self.on_loading: list[Callable[[LoadStage], None]] = []

    def start(self) -> None:
        """Spawn the process and begin to listen to it. Call it on the event loop, before any gRPC object exists."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self.failed: asyncio.Future[EngineFailedError] = self._loop.create_future()
        sleep_between_steps()
        resource_tracker.ensure_running()  # starting it, as starting a process does, would let the signals go again
        with _signals_held():
            self._process.start()
        for end in self._childs_ends:
            end.close()  # so that this side sees the end of file when the process dies
        threading.Thread(target=self._read, name="engine-events", daemon=True).start()
        threading.Thread(target=self._write, name="engine-requests", daemon=True).start()

    @property
    def info(self) -> EngineInfo:
        """What is served; known once ready."""
        assert self._info is not None, "the engine is not ready"
        return self._info

    async def ready(self) -> EngineInfo:
        """Wait until the model is loaded. Raises EngineFailedError when it cannot be."""
        return await asyncio.shield(self._ready)

    def check(self, request: GenerateRequest) -> None:
        """Raise InvalidRequestError for a request that no prompt could make possible; it may have none yet."""
        assert self._limits is not None, "the engine is not ready"
        validate_before_prompt(request, self._limits, self._tenants.get(request.tenant).kv_share)

    def reserve(self, tokens_upper_bound: int, tenant: str) -> Ticket:
        """Take room in the queue before working on a request. Raises QueueFullError or UnavailableError."""
        if self.failed.done():
            raise self.failed.result()
        if self._info is None:
            raise UnavailableError("MODEL_LOADING", 1.0)
        return self._gate.reserve(tokens_upper_bound, tenant)

    def validate(self, request: GenerateRequest) -> None:
        """Raise InvalidRequestError for a request that the engine would refuse."""
        assert self._limits is not None, "the engine is not ready"
        validate(request, self._limits, self._tenants.get(request.tenant).kv_share)

    def submit(self, request: GenerateRequest, ticket: Ticket, meter: Meter) -> RequestStream:
        """Hand a valid request to the engine. Raises EngineFailedError; the ticket stays yours."""
        if self.failed.done():
            raise self.failed.result()
        request = replace(request, request_id=self._unused_id(request.request_id))
        ticket.resize(request.most_tokens)
        self._ask()
        stream = self._streams[request.request_id] = RequestStream(self, request.request_id, ticket, meter)
        self._to_send.put(Submit(request))
        return stream

    def snapshot(self) -> BudgetSnapshot:
        """The budget after the last step, and the queue now, requests still being tokenised included."""
        wait_s = self._outlook.wait_s(time.monotonic())
        queued, tokens = self._gate.requests, self._gate.tokens
        return replace(self._budget, queued=queued, queued_tokens=tokens, estimated_wait_s=wait_s)

    def progress(self) -> Progress:
        """The heartbeat; and while an answer is owed, also how long nothing came: an engine may hang while idle."""
        beat = self._heartbeat.read()
        if not self._is_owed_an_answer():
            return beat
        silence_s = time.monotonic() - max(self._heard_at, self._asked_at)
        return Progress(True, max(beat.step_age_s, silence_s))

    async def flush_prefix_cache(self) -> int:
        """Forget cached prefixes that nobody uses; the number of KV blocks freed. Raises EngineFailedError."""
        if self.failed.done():
            raise self.failed.result()
        answer: asyncio.Future[int] = self._loop.create_future()
        self._ask()
        self._flushes.append(answer)
        self._to_send.put(Flush())
        return await answer

    async def stop(self, timeout_s: float) -> None:
        """End the process: asked first, killed after `timeout_s`. While it loads it has nothing to finish."""
        self._stopping = True
        self._to_send.put(Stop())
        self._to_send.put(None)
        if self._info is not None:
            await asyncio.to_thread(self._process.join, timeout_s)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)

    def _is_owed_an_answer(self) -> bool:
        return bool(self._streams or self._flushes)

    def _ask(self) -> None:
        """Something is about to be sent that the engine has to answer."""
        if not self._is_owed_an_answer():
            self._asked_at = time.monotonic()

    def _read(self) -> None:
        try:
            while True:
                message = pickle.loads(self._outbox.recv_bytes())
                self._loop.call_soon_threadsafe(self._take, message)
        except (EOFError, OSError):
            self._process.join(1.0)
            self._post(self._died)

    def _post(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # the loop is closed: nobody is left to tell

    def _write(self) -> None:
        while (message := self._to_send.get()) is not None:
            try:
                self._inbox.send(message)
            except OSError:
                return  # the reading thread notices the same death

    def _take(self, message: FromEngine) -> None:
        self._heard_at = time.monotonic()
        match message:
            case Output(record, budget, events, outlook):
                self._budget = budget
                self._outlook = outlook or self._outlook
                for event in events:
                    self._dispatch(event)
                if record is not None:
                    for listener in self.on_step:
                        listener(record)
            case Loading(stage):
                for heard in self.on_loading:
                    heard(stage)
            case Ready(info, limits, budget):
                self._info, self._limits, self._budget = info, limits, budget
                self._ready.set_result(info)
            case Flushed(blocks):
                answer = self._flushes.pop(0)
                if not answer.done():  # its caller may have gone
                    answer.set_result(blocks)
            case Fatal():
                self._fatal = message

    def _dispatch(self, event: Event) -> None:
        self._streams[event.request_id]._push(event)
        if isinstance(event, Done | Failed):
            del self._streams[event.request_id]

    def _unused_id(self, request_id: str) -> str:
        """One that no other request in the engine has: those of other tenants may be called the same, and a cancelled
        one keeps its id until the engine has confirmed. Callers are never shown it."""
        unused, count = request_id, 1
        while unused in self._streams:
            count += 1
            unused = f"{request_id}.{count}"
        return unused

    def _died(self) -> None:
        error = self._why_died()
        for request_id, stream in list(self._streams.items()):
            del self._streams[request_id]
            stream._push(Failed(request_id, error))
        for answer in self._flushes:
            if not answer.done():
                answer.set_exception(error)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting
        if not self.failed.done() and not self._stopping:
            self.failed.set_result(error)

    def _why_died(self) -> EngineFailedError:
        if self._stopping:
            return EngineFailedError("the engine was stopped")
        if self._fatal is None:
            return EngineFailedError(f"the engine process ended with exit code {self._process.exitcode}")
        kind = WrongSettingsError if self._fatal.wrong_settings else EngineFailedError
        return kind(self._fatal.detail)


@contextmanager
def _signals_held() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the block ends; a process started in it never gets them.

    A terminal's Ctrl-C goes to the engine process as well, which could not ignore it while its interpreter starts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
