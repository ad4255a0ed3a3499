"""The engine in a process of its own, and the handle on it that the server's event loop holds.

Messages go over two pipes; threads do the blocking reads and writes, so that neither the event loop nor a step ever
waits for the other side. The heartbeat is shared memory: reading it needs no answer from the engine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from weir.config import ConfigError, Settings
from weir.engine.errors import EngineFailedError, RequestError, UnavailableError
from weir.engine.queue_gate import QueueGate, Ticket
from weir.engine.records import BudgetSnapshot, EngineInfo, StepRecord
from weir.engine.request import Admitted, Done, Event, Failed, GenerateRequest
from weir.engine.tenants import tenants_of
from weir.engine.validation import RequestLimits, validate
from weir.models.errors import ModelError

_IDLE_POLL_S = 0.5
_EMPTY_STEP_S = 0.001
_NO_BUDGET = BudgetSnapshot(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Submit:
    """To the engine: queue this request."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end this request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Flush:
    """To the engine: forget cached prefixes; answered with Flushed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To the engine: end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From the engine: the model is loaded."""

    info: EngineInfo
    limits: RequestLimits
    budget: BudgetSnapshot


@dataclass(frozen=True, slots=True)
class Output:
    """From the engine: a step, or what happened between steps (record is None)."""

    record: StepRecord | None
    budget: BudgetSnapshot
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Flushed:
    """From the engine: blocks that became free."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """From the engine: why it is about to exit."""

    detail: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The heartbeat: whether the engine has work, and how long ago it last showed progress on it."""

    busy: bool
    step_age_s: float


class _Heartbeat:
    """Shared memory: when the step that runs now began; 0 while the engine is idle."""

    def __init__(self, context: multiprocessing.context.SpawnContext) -> None:
        self._began = context.RawValue("d", 0.0)

    def beat(self) -> None:
        self._began.value = time.monotonic()

    def rest(self) -> None:
        self._began.value = 0.0

    def read(self) -> Progress:
        began = self._began.value
        return Progress(began > 0.0, time.monotonic() - began if began > 0.0 else 0.0)


# -- in the engine process ----------------------------------------------------------------------------------------


def _engine_main(settings: Settings, inbox: Connection, outbox: Connection, heartbeat: _Heartbeat) -> None:
    # The server decides when this process ends; a terminal's Ctrl-C goes to both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        from weir.engine.load import load_engine, request_limits  # late: torch stays out of the server

        core = load_engine(settings)
        outbox.send(Ready(core.info, request_limits(settings, core.info), core.snapshot()))
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_read_into, args=(inbox, messages), daemon=True).start()
        _serve(core, messages, outbox, heartbeat)
    except BrokenPipeError:
        os._exit(1)  # the server is gone
    except (ConfigError, ModelError) as error:
        outbox.send(Fatal(str(error)))
        raise SystemExit(1) from None
    except BaseException as error:
        outbox.send(Fatal(f"{type(error).__name__}: {error}"))
        raise


def _serve(core: Any, messages: queue.SimpleQueue[Any], outbox: Connection, heartbeat: _Heartbeat) -> None:
    while True:
        while (message := _next(messages, core)) is not None:
            if isinstance(message, Stop):
                return
            _handle(core, message, outbox)
        if core.has_work:
            heartbeat.beat()
            output = core.step()
            outbox.send(Output(output.record, core.snapshot(), output.events))
            if output.record is None:
                time.sleep(_EMPTY_STEP_S)
        if not core.has_work:
            heartbeat.rest()


def _next(messages: queue.SimpleQueue[Any], core: Any) -> Any:
    """The next message; None when there is none and the engine has work (or a deadline) to go on with."""
    try:
        return messages.get_nowait() if core.has_work else messages.get(timeout=_IDLE_POLL_S)
    except queue.Empty:
        return None


def _handle(core: Any, message: Any, outbox: Connection) -> None:
    match message:
        case Submit(request):
            try:
                core.submit(request)
            except RequestError as error:
                outbox.send(Output(None, core.snapshot(), [Failed(request.request_id, error)]))
        case Cancel(request_id):
            core.cancel(request_id)
            outbox.send(Output(None, core.snapshot(), core.take_events()))
        case Flush():
            outbox.send(Flushed(core.flush_prefix_cache()))


def _read_into(inbox: Connection, messages: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            messages.put(inbox.recv())
    except (EOFError, OSError):
        messages.put(Stop())  # the server is gone


# -- in the server process ----------------------------------------------------------------------------------------


class RequestStream:
    """The events of one request, for one reader."""

    def __init__(self, client: EngineClient, request_id: str, ticket: Ticket) -> None:
        self._client = client
        self._request_id = request_id
        self._ticket = ticket
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events up to Done. Raises the RequestError of a request that failed."""
        while True:
            event = await self._events.get()
            if isinstance(event, Failed):
                raise event.error
            yield event
            if isinstance(event, Done):
                return

    def close(self) -> None:
        """Cancel the request unless it has ended. Idempotent."""
        self._ticket.release()
        if not self._ended:
            self._ended = True
            self._client._to_send.put(Cancel(self._request_id))

    def _push(self, event: Event) -> None:
        if isinstance(event, Admitted | Done | Failed):
            self._ticket.release()
        if not self._ended:
            self._events.put_nowait(event)
            self._ended = isinstance(event, Done | Failed)


class EngineClient:
    """Starts the engine process, hands it requests and hands out their events. Lives on one event loop."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._heartbeat = _Heartbeat(context)
        inbox_read, self._inbox = context.Pipe(duplex=False)
        self._outbox, outbox_write = context.Pipe(duplex=False)
        self._childs_ends = (inbox_read, outbox_write)
        self._process = context.Process(
            target=_engine_main, args=(settings, inbox_read, outbox_write, self._heartbeat), daemon=True
        )
        self._tenants = tenants_of(settings.engine)
        engine = settings.engine
        self._gate = QueueGate(engine.max_queue_requests, engine.max_queue_tokens, self._tenants, lambda: self._budget)
        self._to_send: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._streams: dict[str, RequestStream] = {}
        self._flushes: list[asyncio.Future[int]] = []
        self._budget = _NO_BUDGET
        self._info: EngineInfo | None = None
        self._limits: RequestLimits | None = None
        self._detail = ""
        self._stopping = False
        self.on_step: list[Callable[[StepRecord], None]] = []

    def start(self) -> None:
        """Spawn the process and begin to listen to it. Call it on the event loop, before any gRPC object exists."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self.failed: asyncio.Future[EngineFailedError] = self._loop.create_future()
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

    def reserve(self, tokens_upper_bound: int, tenant: str) -> Ticket:
        """Take room in the queue before working on a request. Raises QueueFullError or UnavailableError."""
        if self.failed.done():
            raise self.failed.result()
        if self._info is None:
            raise UnavailableError("MODEL_LOADING", 1.0)
        return self._gate.reserve(tokens_upper_bound, tenant)

    def submit(self, request: GenerateRequest, ticket: Ticket) -> RequestStream:
        """Hand a request to the engine. Raises InvalidRequestError or EngineFailedError; the ticket stays yours."""
        if self.failed.done():
            raise self.failed.result()
        assert self._limits is not None, "the engine is not ready"
        validate(request, self._limits, self._tenants.get(request.tenant).kv_share)
        request = replace(request, request_id=self._unused_id(request.request_id))
        ticket.resize(len(request.prompt_token_ids) + request.n * request.params.max_tokens)
        stream = self._streams[request.request_id] = RequestStream(self, request.request_id, ticket)
        self._to_send.put(Submit(request))
        return stream

    def snapshot(self) -> BudgetSnapshot:
        """The budget after the last step, and the queue now, requests still being tokenised included."""
        return replace(self._budget, queued=self._gate.requests, queued_tokens=self._gate.tokens)

    def progress(self) -> Progress:
        """The heartbeat."""
        return self._heartbeat.read()

    async def flush_prefix_cache(self) -> int:
        """Forget cached prefixes that nobody uses; the number of KV blocks freed. Raises EngineFailedError."""
        if self.failed.done():
            raise self.failed.result()
        answer: asyncio.Future[int] = self._loop.create_future()
        self._flushes.append(answer)
        self._to_send.put(Flush())
        return await answer

    async def stop(self, timeout_s: float) -> None:
        """End the process: asked first, killed after `timeout_s`."""
        self._stopping = True
        self._to_send.put(Stop())
        self._to_send.put(None)
        await asyncio.to_thread(self._process.join, timeout_s)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)

    # -- threads ------------------------------------------------------------------------------------------------

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

    # -- on the event loop --------------------------------------------------------------------------------------

    def _take(self, message: Any) -> None:
        match message:
            case Output(record, budget, events):
                self._budget = budget
                for event in events:
                    self._dispatch(event)
                if record is not None:
                    for listener in self.on_step:
                        listener(record)
            case Ready(info, limits, budget):
                self._info, self._limits, self._budget = info, limits, budget
                self._ready.set_result(info)
            case Flushed(blocks):
                answer = self._flushes.pop(0)
                if not answer.done():  # its caller may have gone
                    answer.set_result(blocks)
            case Fatal(detail):
                self._detail = detail

    def _dispatch(self, event: Event) -> None:
        self._streams[event.request_id]._push(event)
        if isinstance(event, Done | Failed):
            del self._streams[event.request_id]

    def _unused_id(self, request_id: str) -> str:
        """A cancelled request keeps its id until the engine has confirmed; a new one of that name gets a suffix."""
        unused, count = request_id, 1
        while unused in self._streams:
            count += 1
            unused = f"{request_id}.{count}"
        return unused

    def _died(self) -> None:
        detail = self._detail or f"the engine process ended with exit code {self._process.exitcode}"
        error = EngineFailedError("the engine was stopped" if self._stopping else detail)
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
