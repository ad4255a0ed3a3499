"""The life of a server process: load, serve, drain, stop; and what its exit code says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

from weir.config import ConfigError, Settings
from weir.engine.errors import EngineFailedError, RequestError, UnavailableError, WrongSettingsError
from weir.exit_codes import FAILED, OK, WRONG_USAGE
from weir.models.errors import ModelError
from weir.progress import Progress
from weir.server.admin import check_address
from weir.server.backlog import Backlogs
from weir.server.checks import check_socket
from weir.server.descriptors import connections_within, raise_limit
from weir.server.engine_api import Engine
from weir.server.lifecycle import DRAINING_RETRY_S, Lifecycle
from weir.server.limits import MessageLimits
from weir.server.live import LiveRequests
from weir.server.observer import NoObserver, Observer
from weir.server.prompts import PromptEncoder, Tokenizer
from weir.server.security import bind
from weir.server.services import Services
from weir.server.signals import StopSignals

# For statuses to reach their clients once nothing runs any more.
FLUSH_S = 0.5
QUIET_S = 0.2
# For a step that runs to its end; the engine has nothing to save.
ENGINE_STOP_S = 1.0
# What the engine and telemetry get of a stop that was asked for twice.
HURRIED_STOP_S = 0.2

# Failures whose message says everything.
_EXPECTED = (EngineFailedError, ModelError, ConfigError, OSError)
# Failures that another start with the same settings would meet again.
_WRONG_SETTINGS = (ModelError, ConfigError, WrongSettingsError)

_log = logging.getLogger(__name__)


class App:
    """One engine, one tokenizer, and the gRPC services over them. Make it inside the event loop."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        tokenizer: Tokenizer,
        observer: Observer | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts: PromptEncoder | None = None
        self._limits: MessageLimits | None = None
        self._failure: Exception | None = None
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()
        self.lifecycle = Lifecycle()
        self.live = LiveRequests()
        self._observer: Observer = observer or NoObserver()
        self._loading: asyncio.Task[None] | None = None
        server = settings.server
        self.backlogs = Backlogs(server.max_stream_buffer_bytes, server.max_buffer_bytes, server.unread_timeout_s)
        self._observer.output(self.backlogs)
        self._watching: asyncio.Task[None] | None = None
        max_connections = connections_within(server.max_connections, raise_limit())
        services = Services(
            settings,
            engine,
            self.lifecycle,
            self.live,
            self._encoder,
            lambda: self._limits,
            self._observer,
            self.backlogs,
            max_connections,
        )
        self._traffic = services.load
        self._credentials = services.credentials
        self._observer.credentials(services.credentials)
        self._server, self._admin, self._probes = services.public(), services.admin(), services.probes()
        self.port = 0
        self.health_port = 0
        self.admin_target = ""

    async def start(self) -> None:
        """Open every port, and begin to load. Raises ConfigError, and OSError when a port is taken."""
        server = self._settings.server
        await self._observer.start()
        self._engine.on_step.append(self._observer.step)
        host = f"[{server.host.strip('[]')}]" if ":" in server.host else server.host
        address, admin = f"{host}:{server.port}", check_address(server.admin_address)
        if admin.startswith("unix:"):
            check_socket(admin)
        self.port = _listen(lambda: bind(self._server, address, server, self._credentials), address)
        admin_port = _listen(lambda: self._admin.add_insecure_port(admin), admin)
        self.admin_target = admin if admin.startswith("unix:") else f"{admin.rpartition(':')[0]}:{admin_port}"
        if server.health_port is not None:
            address = f"{host}:{server.health_port}"
            self.health_port = _listen(lambda: self._probes.add_insecure_port(address), address)
        await asyncio.gather(self._server.start(), self._admin.start(), self._probes.start())
        _log.info("listening on %s:%d, admin on %s", host, self.port, self.admin_target)
        self._watching = asyncio.create_task(self.backlogs.watch())
        self._loading = asyncio.create_task(self._load())

    async def run(self, signals: StopSignals | None = None) -> int:
        """Serve until SIGTERM, SIGINT or the engine's death. The exit code, as `weir.exit_codes` explains them.

        signals: those that are taken already, by a process that must not end before this.
        """
        (signals or StopSignals(asyncio.get_running_loop())).tell(self.request_stop)
        try:
            await self.start()
        except _EXPECTED as error:
            self._fail(error)
        await self._end.wait()
        await self.shut_down()
        return self._exit_code()

    def request_stop(self) -> None:
        """Begin to drain; asked a second time, cut what still runs."""
        if self._end.is_set():
            self._hurry.set()
        self._end.set()

    async def shut_down(self) -> None:
        """Let running requests finish within the drain timeout, cut the rest, and end everything."""
        self.lifecycle.shut_down()
        if self._failure is None:
            await self._drained()
        left: RequestError = UnavailableError("DRAINING", DRAINING_RETRY_S)
        if isinstance(self._failure, RequestError):
            left = self._failure
        if len(self.live):
            _log.warning("cutting %d requests: %s", len(self.live), left)
        self.live.interrupt_all(left)
        await self.live.wait_empty(FLUSH_S)
        for task in (self._loading, self._watching):
            if task is not None:
                task.cancel()
        # Calls that gRPC has taken in and that were not looked at yet would end with a bare CANCELLED.
        await self._traffic.quiet(QUIET_S, FLUSH_S)
        # Open watches would hold `stop` for all of its grace; this ends them.
        self.lifecycle.stop()
        servers = (self._server, self._admin, self._probes)
        # A failure hurries too, but the last spans and log lines are then worth waiting for.
        engine_stop_s = HURRIED_STOP_S if self._hurry.is_set() else ENGINE_STOP_S
        self._tokenizer.close()
        await asyncio.gather(*(server.stop(FLUSH_S) for server in servers), self._engine.stop(engine_stop_s))
        with contextlib.suppress(TimeoutError):
            asked_twice = self._hurry.is_set() and self._failure is None
            await asyncio.wait_for(self._observer.stop(), HURRIED_STOP_S if asked_twice else None)
        _log.info("stopped")

    async def _load(self) -> None:
        began = time.monotonic()
        self._engine.failed.add_done_callback(lambda failed: self._fail(failed.result()))
        try:
            with self._shown_loading():
                token_bytes, info = await asyncio.gather(self._tokenizer.load(), self._engine.ready())
        except Exception as error:
            self._fail(error)
            return
        self._limits = MessageLimits.of(self._settings, info.max_model_len)
        self._prompts = PromptEncoder(self._tokenizer, token_bytes, self._limits)
        self._observer.watch(self._engine, info, token_bytes)
        self.lifecycle.loaded()
        _log.info(
            "serving %s (%s on %s, %d KV tokens) after %.1f s",
            info.model_name,
            info.dtype,
            info.device,
            info.kv_total_tokens,
            time.monotonic() - began,
        )

    @contextlib.contextmanager
    def _shown_loading(self) -> Iterator[None]:
        telemetry = self._settings.telemetry
        watched = sys.stderr.isatty() and telemetry.log_format == "text" and telemetry.log_level in ("debug", "info")
        with Progress("loading", unit="MiB", terminal=watched, say=_log.info) as progress:
            self._engine.on_loading.append(
                lambda stage: progress.at(f"loading: {stage.what}", stage.done, stage.total or None)
            )
            yield

    def _exit_code(self) -> int:
        if self._failure is None:
            return OK
        return WRONG_USAGE if isinstance(self._failure, _WRONG_SETTINGS) else FAILED

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            _log.error("%s", error, exc_info=None if isinstance(error, _EXPECTED) else error)
            self._failure = error
        self._end.set()
        self._hurry.set()

    async def _drained(self) -> None:
        timeout_s = self._settings.server.drain_timeout_s
        _log.info("draining: %d requests in flight, at most %.1f s", len(self.live), timeout_s)
        empty = asyncio.create_task(self.live.wait_empty(timeout_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({empty, hurry}, return_when=asyncio.FIRST_COMPLETED)
        empty.cancel()
        hurry.cancel()

    def _encoder(self) -> PromptEncoder:
        assert self._prompts is not None, "lifecycle admits requests only once loaded"
        return self._prompts


def _listen(bind_port: Callable[[], int], address: str) -> int:
    """The port that was bound. gRPC's own error for a port in use is a bare RuntimeError."""
    try:
        return bind_port()
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
