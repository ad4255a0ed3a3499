"""The exporter thread when collectors are dead, slow or refusing: what is dropped is counted, and nothing waits."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from weir.config import Settings, TelemetrySettings
from weir.telemetry.pipeline import Pipeline, Sink
from weir.telemetry.ring import Ring
from weir.telemetry.telemetry import Telemetry
from weir.telemetry.trace_metrics import TraceMetrics
from weir.telemetry.tracing import MAX_RING_ITEMS, MAX_RING_WEIGHT

from tests.unit.telemetry.factories import GENERATE, decode, grpc_receiver, request, step


class ScriptedExporter(SpanExporter):
    """Answers each export with the next of `answers` (the last one for ever); an exception is raised."""

    def __init__(self, *answers: SpanExportResult | Exception) -> None:
        self.answers = list(answers)
        self.batches: list[Sequence[ReadableSpan]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(spans)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class OneSpanEach:
    """Every item is one span named after it; the item "bad" cannot be built."""

    def build(self, item: str) -> list[ReadableSpan]:
        if item == "bad":
            raise ValueError(item)
        return [ReadableSpan(item)]


def pipeline_of(items: Sequence[str], metrics: TraceMetrics, max_batch: int = 4) -> Pipeline[str]:
    ring: Ring[str] = Ring(100, 100)
    for item in items:
        assert ring.push(item)
    return Pipeline(ring, OneSpanEach(), metrics, max_batch, delay_s=3600)


def dropped(metrics: TraceMetrics) -> dict[str, float]:
    return {reason: count.value for reason, count in metrics.dropped.items() if count.value}


def test_a_ring_is_bounded_in_items_and_in_weight() -> None:
    ring: Ring[str] = Ring(max_items=3, max_weight=10)
    assert ring.push("a", 9)
    assert not ring.push("too heavy", 2)
    assert ring.push("b", 1)
    assert ring.pop() == "a"
    assert ring.push("c", 8)
    assert ring.push("d", 1)
    assert not ring.push("too many", 0)
    assert [ring.pop() for _ in range(4)] == ["b", "c", "d", None]


def test_what_is_in_the_ring_at_shutdown_is_sent_in_batches() -> None:
    metrics, exporter = TraceMetrics(), ScriptedExporter(SpanExportResult.SUCCESS)
    pipeline = pipeline_of([f"s{i}" for i in range(10)], metrics)
    pipeline.start([Sink(exporter, "test", metrics)])
    pipeline.shutdown(10)
    assert [[span.name for span in batch] for batch in exporter.batches] == [
        ["s0", "s1", "s2", "s3"],
        ["s4", "s5", "s6", "s7"],
        ["s8", "s9"],
    ]
    assert metrics.exported.value == 10
    assert dropped(metrics) == {}


def test_a_record_that_cannot_be_built_does_not_stop_the_next() -> None:
    metrics, exporter = TraceMetrics(), ScriptedExporter(SpanExportResult.SUCCESS)
    pipeline = pipeline_of(["a", "bad", "b"], metrics)
    pipeline.start([Sink(exporter, "test", metrics)])
    pipeline.shutdown(10)
    assert [span.name for span in exporter.batches[0]] == ["a", "b"]
    assert dropped(metrics) == {"build_failed": 1}


def test_one_failing_exporter_does_not_take_spans_from_another() -> None:
    metrics = TraceMetrics()
    good, bad = ScriptedExporter(SpanExportResult.SUCCESS), ScriptedExporter(OSError("disk full"))
    pipeline = pipeline_of([f"s{i}" for i in range(10)], metrics)
    pipeline.start([Sink(bad, "bad", metrics), Sink(good, "good", metrics)])
    pipeline.shutdown(10)
    assert sum(len(batch) for batch in good.batches) == 10
    assert len(bad.batches) == 1, "after a failure it rests"
    assert dropped(metrics) == {"export_failed": 10}


def test_a_sink_that_failed_works_again_after_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("weir.telemetry.pipeline.time.monotonic", lambda: now)
    metrics = TraceMetrics()
    fail, ok = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    exporter = ScriptedExporter(fail, fail, ok)
    sink = Sink(exporter, "test", metrics)
    spans = [ReadableSpan("a")]
    tried = []
    for seconds in (0.0, 0.9, 1.0, 2.9, 3.0, 3.1):
        now = 1000.0 + seconds
        sink.send(spans)
        tried.append(len(exporter.batches))
    # Fails at 0.0, rests 1 s; fails at 1.0, rests 2 s; works from 3.0 on.
    assert tried == [1, 1, 2, 2, 3, 4]
    assert metrics.exported.value == 2
    assert dropped(metrics) == {"export_failed": 4}


def test_a_collector_that_goes_and_comes_back_is_two_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    fail, ok = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    sink = Sink(ScriptedExporter(fail, fail, fail, ok), "otlp grpc http://c:4317", TraceMetrics())
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            sink._retry_at = 0.0
            sink.send([ReadableSpan("a")])
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "trace export fails, spans are dropped and counted",
        "trace export works again",
    ]


def test_shutdown_gives_up_on_an_export_that_never_returns() -> None:
    entered, release = threading.Event(), threading.Event()

    class Stuck(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            entered.set()
            release.wait()
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            release.wait()

    metrics = TraceMetrics()
    pipeline = pipeline_of([f"s{i}" for i in range(10)], metrics)
    pipeline.start([Sink(Stuck(), "stuck", metrics)])
    closer = threading.Thread(target=pipeline.shutdown, args=(0.2,))
    closer.start()
    assert entered.wait(30)
    closer.join(30)
    assert not closer.is_alive(), "shutdown returned while the export was still stuck"
    assert dropped(metrics) == {"shutdown": 6}
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("trace-"))
    release.set()


def test_shutdown_before_start_counts_what_was_pushed() -> None:
    metrics = TraceMetrics()
    pipeline_of(["a", "b"], metrics).shutdown(0.1)
    assert dropped(metrics) == {"shutdown": 2}


def telemetry_to(endpoint: str, trace_file: Path | None = None) -> Telemetry:
    chosen = TelemetrySettings(trace_endpoint=endpoint, trace_file=str(trace_file) if trace_file else None)
    return Telemetry(Settings(telemetry=chosen), "tiny")


def exporter_thread_ended(telemetry: Telemetry) -> bool:
    """Closing an exporter ends its export in progress, and with it the thread."""
    thread = telemetry.tracing._pipeline._thread
    thread.join(30)
    return not thread.is_alive()


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_dead_collector_loses_spans_and_nothing_else(tmp_path: Path) -> None:
    telemetry = telemetry_to(f"http://127.0.0.1:{unused_port()}", tmp_path / "trace.jsonl")
    telemetry.tracing.start()
    for number in range(50):
        telemetry.step(step(number, decodes=(decode("a"),)))
    telemetry.tracing.shutdown(2.0)
    assert exporter_thread_ended(telemetry)
    lost = telemetry.metrics.traces.dropped
    assert lost["export_failed"].value + lost["shutdown"].value == 50
    assert telemetry.metrics.engine.decode_tokens.value == 50


def test_a_collector_that_refuses_is_a_failed_export() -> None:
    with grpc_receiver(code=grpc.StatusCode.PERMISSION_DENIED) as (endpoint, received):
        telemetry = telemetry_to(endpoint)
        telemetry.tracing.start()
        telemetry.step(step(decodes=(decode("a"),)))
        telemetry.tracing.shutdown(10)
    assert received.requests == []
    assert dropped(telemetry.metrics.traces) == {"export_failed": 1}


def test_a_collector_that_does_not_answer_holds_up_neither_steps_nor_shutdown() -> None:
    hold = threading.Event()
    with grpc_receiver(hold=hold) as (endpoint, received):
        telemetry = telemetry_to(endpoint)
        telemetry.tracing.start()
        for number in range(MAX_RING_ITEMS + 10):
            telemetry.step(step(number, decodes=(decode("a"),)))
        telemetry.tracing.shutdown(0.5)
        assert received.requests == [], "shutdown returned although no export was answered"
        assert exporter_thread_ended(telemetry)
        lost = telemetry.metrics.traces.dropped
        assert sum(count.value for count in lost.values()) == MAX_RING_ITEMS + 10


def test_records_that_find_the_ring_full_are_dropped_and_counted() -> None:
    telemetry = telemetry_to("http://127.0.0.1:1")
    wide = step(decodes=tuple(decode(f"r{i}") for i in range(1023)))
    for _ in range(MAX_RING_WEIGHT // 1024 + 5):
        telemetry.step(wide)
    observer = telemetry.request_started(GENERATE, {})
    observer.submitted(request())
    observer.queued("r1")
    observer.finished("OK", None)
    assert dropped(telemetry.metrics.traces) == {"ring_full": 5 + 2}


def test_nothing_is_kept_when_nothing_is_exported() -> None:
    telemetry = Telemetry(Settings(), "tiny")
    telemetry.tracing.start()
    for number in range(MAX_RING_ITEMS + 1):
        telemetry.step(step(number))
    telemetry.tracing.shutdown()
    assert not telemetry.tracing.active
    assert dropped(telemetry.metrics.traces) == {}
