"""The one owner of every metric: made once at start, rendered at the scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as _untyped_openmetrics

from weir import __version__
from weir.engine.records import EngineInfo
from weir.telemetry.credential_metrics import CredentialMetrics
from weir.telemetry.engine_metrics import EngineMetrics, EngineView
from weir.telemetry.exposition import TEXT_CONTENT_TYPE, FamilyCollector, TextWriter
from weir.telemetry.request_metrics import RequestMetrics
from weir.telemetry.series import Family, gauge
from weir.telemetry.trace_metrics import TraceMetrics
from weir.telemetry.vllm_metrics import vllm_families

PROCESS_REFRESH_S = 1.0

# Without ALLOWUTF8 the library turns the colon of a sample's name into an underscore. No name of ours needs quoting.
generate_openmetrics: Callable[[CollectorRegistry], bytes] = partial(_untyped_openmetrics, escaping=ALLOWUTF8)


class Metrics:
    """Every series of the process.

    `model_name` is the served name; `vllm_names` adds the alias set; `tenants` are the configured ones.
    """

    def __init__(self, model_name: str, vllm_names: bool = True, tenants: Iterable[str] = ()) -> None:
        self.engine = EngineMetrics()
        self.requests = RequestMetrics(tenants)
        self.traces = TraceMetrics()
        self.credentials = CredentialMetrics()
        self._model_name = model_name
        self._vllm_names = vllm_names
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._process_text = b""
        self._process_text_until = 0.0
        self._build()

    def watch(self, engine: EngineView, info: EngineInfo) -> None:
        """The engine is ready: read its gauges and say what it is."""
        self.engine.watch(engine, info)
        self._build()

    def _build(self) -> None:
        families = [*self.engine.families(), *self.requests.families(), *self.traces.families()]
        families += [*self.credentials.families(), self._info()]
        if self._vllm_names:
            families += vllm_families(self.engine, self.requests, self._model_name)
        self._text = TextWriter(families)
        self._registry = CollectorRegistry()
        self._registry.register(FamilyCollector(families))

    def _info(self) -> Family:
        info = self.engine.info
        labels = (
            ("version", __version__),
            ("model_name", self._model_name),
            ("architecture", info.architecture if info is not None else ""),
            ("dtype", info.dtype if info is not None else ""),
            ("device", info.device if info is not None else ""),
            ("kernels", info.kernels if info is not None else ""),
        )
        ready = int(info is not None)
        return gauge("weir_engine_info", "What is served, in the labels; 1 when ready.", lambda: ready, labels)

    def text(self) -> bytes:
        """The text format 0.0.4."""
        self.engine.refresh()
        now = time.monotonic()
        if now >= self._process_text_until:
            # Reading /proc costs as much as all the rest, and nobody scrapes memory each 50 ms.
            self._process_text, self._process_text_until = generate_latest(self._process), now + PROCESS_REFRESH_S
        return self._text.write().encode() + self._process_text

    def openmetrics(self) -> bytes:
        """OpenMetrics 1.0, with exemplars."""
        self.engine.refresh()
        process = generate_openmetrics(self._process).removesuffix(b"# EOF\n")
        return process + generate_openmetrics(self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an Accept header: OpenMetrics only where the client asks for it."""
        if "application/openmetrics-text" in accept:
            return self.openmetrics(), OPENMETRICS_CONTENT_TYPE
        return self.text(), TEXT_CONTENT_TYPE
