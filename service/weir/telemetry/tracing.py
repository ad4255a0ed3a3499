"""Tracing as the event loop sees it: start a request's trace, push what happened, and go on."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind

from weir import __version__
from weir.config import TelemetrySettings
from weir.engine.records import StepRecord
from weir.telemetry import attributes as names
from weir.telemetry.exporters import ExporterSpec, wanted_exporters
from weir.telemetry.pipeline import Pipeline, Sink
from weir.telemetry.request_spans import Decode, EndedSpans, RequestSpans
from weir.telemetry.request_trace import AnchoredClock, RequestTrace
from weir.telemetry.ring import Ring
from weir.telemetry.span_builder import Submitted, TraceItem, TraceSpanBuilder
from weir.telemetry.step_spans import StepSpans, step_sampler
from weir.telemetry.trace_metrics import TraceMetrics

MAX_RING_ITEMS = 8192
# A step with 64 rows weighs 65, and a row takes about 200 bytes.
MAX_RING_WEIGHT = 65536
MAX_BATCH_SPANS = 512
# Short, so that the exporter holds the interpreter for a few milliseconds at a time and never for many.
EXPORT_DELAY_MS = 250
SHUTDOWN_TIMEOUT_S = 2.0
# More than a clock that is only disciplined comes to be ahead in a while.
TELL_BEHIND_S = 1.0

logger = logging.getLogger(__name__)


class Tracing:
    """Makes and exports the spans of requests and steps.

    `model_name` is the served name. As many requests as `max_running` can be linked to one step, unless
    OTEL_SPAN_LINK_COUNT_LIMIT says otherwise. The environment has been through `otel_environment.repair`.
    Raises ConfigError for a trace file or endpoint that cannot be used.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        model_name: str,
        metrics: TraceMetrics,
        max_running: int = 64,
    ) -> None:
        self.clock = AnchoredClock()
        self._metrics = metrics
        self._model_name = model_name
        self._exporters = wanted_exporters(settings, os.environ)
        limits = SpanLimits()
        provider = TracerProvider(
            resource=Resource.create(_service(os.environ)), span_limits=limits, shutdown_on_exit=False
        )
        ended = EndedSpans()
        provider.add_span_processor(ended)
        self._tracer = provider.get_tracer("weir", __version__)
        self._requests = RequestSpans(self._tracer, ended, model_name)
        default_links = max(limits.max_links or 0, max_running)
        steps = StepSpans(
            provider.resource,
            InstrumentationScope("weir", __version__),
            step_sampler(settings.trace_steps, settings.trace_step_ratio, settings.trace_slow_step_s),
            _int("OTEL_SPAN_LINK_COUNT_LIMIT", default_links),
            settings.trace_phases,
            self.clock,
        )
        self._told_behind_s = 0.0
        self._ring: Ring[TraceItem] = Ring(_int("OTEL_BSP_MAX_QUEUE_SIZE", MAX_RING_ITEMS), MAX_RING_WEIGHT)
        self._pipeline: Pipeline[TraceItem] = Pipeline(
            self._ring,
            TraceSpanBuilder(steps, self._requests),
            metrics,
            max_batch=_int("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", MAX_BATCH_SPANS),
            delay_s=_int("OTEL_BSP_SCHEDULE_DELAY", EXPORT_DELAY_MS) / 1000,
        )

    @property
    def active(self) -> bool:
        """Whether spans go anywhere."""
        return bool(self._exporters)

    def start(self) -> None:
        """Open the exporters and start their thread, if spans go anywhere."""
        if self.active:
            self._pipeline.start([sink for spec in self._exporters if (sink := self._open(spec)) is not None])

    def _open(self, spec: ExporterSpec) -> Sink | None:
        try:
            return Sink(spec.make(), spec.name, self._metrics)
        except Exception as error:
            # Whatever the SDK finds wrong now: serving goes on without this exporter.
            logger.warning("no traces go to %s: %s: %s", spec.name, type(error).__name__, error)
            return None

    def show_content(self, decode: Decode) -> None:
        """Put prompt and output text on request spans; `decode` turns prompt token ids into text."""
        self._requests.decode = decode

    def request_started(self, method: str, metadata: Mapping[str, str]) -> RequestTrace:
        """The trace of an RPC: a child of the caller's span if the metadata name one, else a new root."""
        started_ns = self.clock.now_ns()
        if self.active:
            self._tell_of_a_set_clock()
        span = self._tracer.start_span(
            method,
            context=get_global_textmap().extract(metadata, Context()),
            kind=SpanKind.SERVER,
            attributes={
                names.RPC_SYSTEM: "grpc",
                names.RPC_METHOD: method,
                names.GEN_AI_OPERATION: "text_completion",
                names.GEN_AI_PROVIDER: "weir",
                names.GEN_AI_REQUEST_MODEL: self._model_name,
            },
            start_time=started_ns,
        )
        return RequestTrace(method, span, started_ns)

    def _tell_of_a_set_clock(self) -> None:
        behind_s = self.clock.behind_s()
        if abs(behind_s - self._told_behind_s) > TELL_BEHIND_S:
            self._told_behind_s = behind_s
            logger.warning("the wall clock was set by %.1f s; spans keep the clock of the start", behind_s)

    def request_submitted(self, trace: RequestTrace) -> None:
        """The request goes to the engine: steps may link to it."""
        if self.active and trace.request is not None and trace.span.is_recording():
            self._push(Submitted(trace.request.request_id, trace.context), 1)

    def request_finished(self, trace: RequestTrace) -> None:
        """The RPC ended; nothing may change `trace` after this."""
        if self.active and trace.span.is_recording():
            self._push(trace, 8 + trace.output_chars // 256)

    def step(self, record: StepRecord) -> None:
        """A step ended."""
        if self.active:
            self._push(record, 1 + len(record.decodes) + len(record.prefills))

    def _push(self, item: TraceItem, weight: int) -> None:
        if not self._ring.push(item, weight):
            self._metrics.dropped["ring_full"].add()

    def shutdown(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Send what waits, for at most `timeout_s`. Blocks: call it off the event loop, once, and only if started."""
        if self.active:
            self._pipeline.shutdown(timeout_s)


def _service(env: Mapping[str, str]) -> dict[str, str]:
    """The service's name and version, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES give them."""
    given = env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = "OTEL_SERVICE_NAME" in env or "service.name=" in given
    version = {} if "service.version=" in given else {"service.version": __version__}
    return version if named else {"service.name": "weir", **version}


def _int(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text else default
