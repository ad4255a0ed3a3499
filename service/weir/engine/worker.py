"""The engine process: takes requests from one pipe, steps, and answers over the other."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from weir.config import ConfigError, Settings
from weir.engine.errors import RequestError
from weir.engine.heartbeat import Heartbeat
from weir.engine.messages import Cancel, Fatal, Flush, Flushed, Loading, Output, Ready, Stop, Submit, ToEngine
from weir.engine.records import LoadStage, QueueOutlook, StepRecord
from weir.engine.request import Event, Failed
from weir.models.errors import ModelError

if TYPE_CHECKING:
    from weir.engine.core import EngineCore

_IDLE_POLL_S = 0.5
_EMPTY_STEP_S = 0.001
_REPORT_EVERY_S = 0.2
_NICENESS = 5

_log = logging.getLogger(__name__)


def engine_main(
    settings: Settings,
    inbox: Connection,
    outbox: Connection,
    heartbeat: Heartbeat,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Load the model, say Ready, and serve until Stop or until the server is gone. Says Fatal before it fails.

    prepare: called first, in this process; the server's way to have its log lines look like its own.
    """
    # The server decides when this process ends; a terminal's Ctrl-C goes to both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # On a CPU, compute threads keep every core busy. Those that answer clients and probes go first: they need little,
    # and a step that has to stop for them does so for a shorter time.
    os.nice(_NICENESS)
    if prepare is not None:
        prepare()
    reports = _LoadReports(outbox)
    try:
        reports.send("importing torch")
        from weir.engine.load import load_engine, request_limits  # late: torch stays out of the server

        core = load_engine(settings, reports.send)
        outbox.send(Ready(core.info, request_limits(settings, core.info), core.snapshot()))
        messages: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        threading.Thread(target=_read_into, args=(inbox, messages), daemon=True).start()
        _serve(core, messages, outbox, heartbeat)
        os._exit(0)  # the system takes everything back at once; unloading torch takes seconds
    except BrokenPipeError:
        os._exit(1)  # the server is gone
    except (ConfigError, ModelError) as error:
        outbox.send(Fatal(str(error), wrong_settings=True))
        raise SystemExit(1) from None
    except BaseException as error:
        _log.critical("the engine failed", exc_info=error)
        outbox.send(Fatal(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


class _Reports:
    """What happened, sent to the server; the outlook only when it is a new one."""

    def __init__(self, core: EngineCore, outbox: Connection) -> None:
        self._core = core
        self._outbox = outbox
        self._told: QueueOutlook | None = None

    def send(self, record: StepRecord | None, events: list[Event]) -> None:
        outlook = self._core.outlook()
        new = None if outlook is self._told else outlook
        self._told = outlook
        self._outbox.send(Output(record, self._core.snapshot(), events, new))


class _LoadReports:
    """How far loading is, sent to the server: not more often than anybody can watch."""

    def __init__(self, outbox: Connection) -> None:
        self._outbox = outbox
        self._what = ""
        self._next_at = 0.0

    def send(self, what: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        now = time.monotonic()
        if what != self._what or now >= self._next_at:
            self._outbox.send(Loading(LoadStage(what, done_bytes >> 20, total_bytes >> 20)))
            self._what, self._next_at = what, now + _REPORT_EVERY_S


def _serve(core: EngineCore, messages: queue.SimpleQueue[ToEngine], outbox: Connection, heartbeat: Heartbeat) -> None:
    reports = _Reports(core, outbox)
    while True:
        while (message := _next(messages, core)) is not None:
            if isinstance(message, Stop):
                return
            if isinstance(message, Flush):
                outbox.send(Flushed(core.flush_prefix_cache()))
            else:
                _handle(core, message, reports)
        if core.has_work:
            heartbeat.beat()
            output = core.step()
            reports.send(output.record, output.events)
            if output.idle:
                time.sleep(_EMPTY_STEP_S)
        if not core.has_work:
            heartbeat.rest()


def _next(messages: queue.SimpleQueue[ToEngine], core: EngineCore) -> ToEngine | None:
    """The next message; None when there is none and the engine has work (or a deadline) to go on with."""
    try:
        return messages.get_nowait() if core.has_work else messages.get(timeout=_IDLE_POLL_S)
    except queue.Empty:
        return None


def _handle(core: EngineCore, message: Submit | Cancel, reports: _Reports) -> None:
    match message:
        case Submit(request):
            try:
                core.submit(request)
            except RequestError as error:
                reports.send(None, [Failed(request.request_id, error)])
        case Cancel(request_id):
            core.cancel(request_id)
            reports.send(None, core.take_events())


def _read_into(inbox: Connection, messages: queue.SimpleQueue[ToEngine]) -> None:
    try:
        while True:
            messages.put(inbox.recv())
    except (EOFError, OSError):
        messages.put(Stop())  # the server is gone
