"""A server over a given engine with the real telemetry, so that a test sees what its metrics say."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from weir.config import EngineSettings, ServerSettings, Settings, TelemetrySettings
from weir.server.app import App
from weir.telemetry.telemetry import Telemetry

from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer


@dataclass(frozen=True)
class Observed:
    app: App
    telemetry: Telemetry

    def statuses(self) -> Counter[str]:
        """Ended calls by the status that the metrics have for them."""
        counts = self.telemetry.metrics.requests.requests
        return Counter({status: int(count.value) for status, count in counts.items() if count.value})


@asynccontextmanager
async def observed_app(
    engine: FakeEngine, stall_timeout_s: float = 60.0, trace_endpoint: str | None = None, **server: object
) -> AsyncIterator[Observed]:
    """Ready, and stopped afterwards. `server` are settings of that section."""
    ports = {"host": "127.0.0.1", "port": 0, "admin_address": "127.0.0.1:0"}
    ports |= {"metrics_host": "127.0.0.1", "metrics_port": 0}
    settings = Settings(
        engine=EngineSettings(stall_timeout_s=stall_timeout_s),
        server=ServerSettings.model_validate(ports | {"drain_timeout_s": 0.1} | server),
        telemetry=TelemetrySettings(trace_endpoint=trace_endpoint),
    )
    telemetry = Telemetry(settings, "echo")
    app = App(settings, engine, ByteTokenizer(), telemetry)
    await app.start()
    engine.load()
    await app.lifecycle.changed(0, timeout_s=5)
    try:
        yield Observed(app, telemetry)
    finally:
        await app.shut_down()
