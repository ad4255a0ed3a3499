"""All telemetry of a server behind one object: it observes requests and steps, and owns the metrics port and traces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from weir.config import Settings
from weir.engine.records import EngineInfo, StepRecord
from weir.telemetry.credential_metrics import CredentialsView
from weir.telemetry.engine_metrics import EngineView
from weir.telemetry.logging import current_span
from weir.telemetry.metrics import Metrics
from weir.telemetry.metrics_server import MetricsServer
from weir.telemetry.request_metrics import OutputView
from weir.telemetry.request_observer import RequestTelemetry
from weir.telemetry.tracing import SHUTDOWN_TIMEOUT_S, Tracing

logger = logging.getLogger(__name__)


class Telemetry:
    """Implements the server's Observer. Raises ConfigError for a trace file or endpoint that cannot be used."""

    def __init__(self, settings: Settings, model_name: str) -> None:
        self.metrics = Metrics(model_name, settings.telemetry.vllm_metrics, settings.engine.tenants)
        self.tracing = Tracing(settings.telemetry, model_name, self.metrics.traces, settings.engine.max_running)
        self._content = settings.telemetry.trace_content
        self._address = (settings.server.metrics_host, settings.server.metrics_port)
        self._port = MetricsServer(self.metrics.render)

    async def start(self) -> int:
        """Open the metrics port and start exporting; the port. Call once the engine process has been spawned.

        Raises OSError when the port is taken.
        """
        self.tracing.start()
        port = await self._port.start(*self._address)
        logger.info("metrics are served", extra={"port": port, "tracing": self.tracing.active})
        return port

    def output(self, held: OutputView) -> None:
        """Show how much output waits for its readers."""
        self.metrics.requests.output = held

    def credentials(self, held: CredentialsView) -> None:
        """Show whether the server's files of tokens and certificates are good."""
        self.metrics.credentials.view = held

    def watch(self, engine: EngineView, info: EngineInfo, token_bytes: Sequence[bytes]) -> None:
        """The engine is ready: show its budget. `token_bytes` (id -> bytes) spells prompts out for trace_content."""
        self.metrics.watch(engine, info)
        if self._content:
            self.tracing.show_content(
                lambda ids: b"".join(token_bytes[token_id] for token_id in ids).decode(errors="replace")
            )

    def step(self, record: StepRecord) -> None:
        """A step ended: for EngineClient.on_step."""
        self.metrics.engine.step(record)
        self.tracing.step(record)

    def request_started(self, method: str, metadata: Mapping[str, str]) -> RequestTelemetry:
        """An RPC arrived; called in the task that serves it, whose log lines carry its trace from now on."""
        trace = self.tracing.request_started(method, metadata)
        current_span.set(trace.context)
        return RequestTelemetry(self.metrics.requests, self.tracing, trace, self._content)

    async def stop(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Send the last spans, for at most `timeout_s`, and close the metrics port."""
        await asyncio.to_thread(self.tracing.shutdown, timeout_s)
        await self._port.stop()
