"""The exporter thread: takes records from the ring, makes spans, sends them. Nothing it does can hold up a request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from weir.telemetry.ring import Ring
from weir.telemetry.trace_metrics import TraceMetrics

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0

logger = logging.getLogger(__name__)

Item = TypeVar("Item", contravariant=True)


class SpanBuilder(Protocol[Item]):
    """Makes the spans of an item; called on the exporter thread only, for every item in order."""

    def build(self, item: Item) -> list[ReadableSpan]: ...


class Sink:
    """One exporter. After a failure it rests, longer each time, and what comes meanwhile is dropped and counted."""

    def __init__(self, exporter: SpanExporter, name: str, metrics: TraceMetrics) -> None:
        self._exporter = exporter
        self._name = name
        self._metrics = metrics
        self._retry_at = 0.0
        self._rest_s = 0.0

    @property
    def resting(self) -> bool:
        """Whether spans would be dropped now."""
        return time.monotonic() < self._retry_at

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Export, or drop and count. Blocks for the exporter's timeout at most."""
        if self.resting or not self._export(spans):
            self._metrics.dropped["export_failed"].add(len(spans))
        else:
            self._metrics.exported.add(len(spans))

    def _export(self, spans: Sequence[ReadableSpan]) -> bool:
        error = "refused or out of reach"
        try:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as failure:
            done, error = False, f"{type(failure).__name__}: {failure}"
        if done and self._rest_s:
            logger.warning("trace export works again: %s", self._name)
        if not done and not self._rest_s:
            logger.warning("trace export fails, spans are dropped and counted: %s: %s", self._name, error)
        self._rest_s = 0.0 if done else min(max(FIRST_RETRY_S, self._rest_s * 2), LONGEST_RETRY_S)
        self._retry_at = time.monotonic() + self._rest_s if self._rest_s else 0.0
        return done

    def close(self) -> None:
        """End an export in progress, and take no more."""
        try:
            self._exporter.shutdown()
        except Exception:
            logger.exception("trace exporter did not close: %s", self._name)


class Pipeline(Generic[Item]):
    """Owns the exporter thread, the only consumer of the ring."""

    def __init__(
        self,
        ring: Ring[Item],
        builder: SpanBuilder[Item],
        metrics: TraceMetrics,
        max_batch: int,
        delay_s: float,
    ) -> None:
        self._ring = ring
        self._builder = builder
        self._metrics = metrics
        self._max_batch = max_batch
        self._delay_s = delay_s
        self._sinks: Sequence[Sink] = ()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        # A daemon: an export that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="trace-exporter", daemon=True)

    def start(self, sinks: Sequence[Sink]) -> None:
        """Start the thread; every span goes to every sink."""
        self._sinks = sinks
        self._thread.start()

    def shutdown(self, timeout_s: float) -> None:
        """Send what is in the ring, for at most `timeout_s`; the rest is dropped and counted. Call once."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s * 0.75)
        if self._thread.is_alive():
            self._abandoned.set()
            # Closing waits on the thread that exports in some exporters, so it happens beside us.
            closer = threading.Thread(target=self._close, name="trace-closer", daemon=True)
            closer.start()
            self._thread.join(timeout_s * 0.25)
        else:
            self._close()
        while self._ring.pop() is not None:
            self._metrics.dropped["shutdown"].add()

    def _close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _run(self) -> None:
        while not self._closing.wait(self._delay_s):
            self._drain()
        self._drain()

    def _build(self, item: Item) -> list[ReadableSpan]:
        try:
            return self._builder.build(item)
        except Exception:
            # Whatever is wrong with one record, the next ones are still worth having.
            logger.exception("no span could be made")
            self._metrics.dropped["build_failed"].add()
            return []

    def _drain(self) -> None:
        while not self._abandoned.is_set():
            spans: list[ReadableSpan] = []
            while len(spans) < self._max_batch and (item := self._ring.pop()) is not None:
                spans += self._build(item)
            if not spans:
                return
            for sink in self._sinks:
                sink.send(spans)
