"""The trace file holds what OTLP/gRPC would have carried, in OTLP's JSON."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from weir.telemetry.otlp_json import JsonLinesExporter

MUCH = 2**30
IDS = ("traceId", "spanId", "parentSpanId")


def span(name: str = "engine.step", status: Status | None = None) -> ReadableSpan:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return ReadableSpan(
        name,
        context=SpanContext(0xABC, 0xDEF, False, sampled, TraceState([("vendor", "x")])),
        parent=SpanContext(0xABC, 0x123, True, sampled),
        resource=Resource({"service.name": "weir"}),
        attributes={"text": "é", "flag": True, "count": 2**40, "ratio": 0.25, "list": ["a", "b"], "numbers": (1, 2)},
        events=[Event("admitted", {"queue_s": 0.5}, 1_700_000_000_000_000_005)],
        links=[Link(SpanContext(7, 8, False, sampled), {"weir.step.decode_tokens": 1})],
        kind=SpanKind.SERVER,
        status=status or Status(StatusCode.UNSET),
        start_time=1_700_000_000_000_000_001,
        end_time=1_700_000_000_000_000_009,
        instrumentation_scope=InstrumentationScope("weir", "1"),
    )


def with_base64_ids(node: Any) -> Any:
    """OTLP's JSON writes ids in hex, protobuf's own JSON mapping in base64; nothing else differs."""
    if isinstance(node, list):
        return [with_base64_ids(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode() if key in IDS else with_base64_ids(value)
        for key, value in node.items()
    }


def test_a_line_is_the_export_request_that_the_sdk_would_encode(tmp_path: Path) -> None:
    spans = [span(), span("weir.v1.InferenceService/Generate", Status(StatusCode.ERROR, "engine failed"))]
    exporter = JsonLinesExporter(tmp_path / "trace.jsonl", MUCH)
    exporter.export(spans)
    exporter.export([span(status=Status(StatusCode.OK))])
    exporter.shutdown()
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    for line, batch in zip(lines, (spans, [span(status=Status(StatusCode.OK))]), strict=True):
        written = ParseDict(with_base64_ids(json.loads(line)), TracesData())
        expected = TracesData(resource_spans=encode_spans(batch).resource_spans)
        for item in expected.resource_spans[0].scope_spans[0].spans:
            # Flags say whether a context came from another process, which a file's reader has no use for.
            item.ClearField("flags")
            for link in item.links:
                link.ClearField("flags")
        assert written == expected


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        exporter = JsonLinesExporter(tmp_path / "trace.jsonl", MUCH)
        exporter.export([span()])
        exporter.shutdown()
    assert len((tmp_path / "trace.jsonl").read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        JsonLinesExporter(tmp_path / "missing" / "trace.jsonl", MUCH)


def test_a_file_that_is_full_makes_way_for_the_next_and_no_line_is_cut(tmp_path: Path) -> None:
    path, older = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.1"
    exporter = JsonLinesExporter(path, MUCH)
    exporter.export([span("0")])
    exporter.shutdown()
    line = path.stat().st_size
    exporter = JsonLinesExporter(path, 2 * line)  # it goes on where the run before it stopped
    for number in range(1, 6):
        exporter.export([span(str(number))])
        assert path.stat().st_size <= 2 * line
    exporter.shutdown()
    assert [names_in(file) for file in (older, path)] == [["2", "3"], ["4", "5"]]


def test_a_line_larger_than_the_limit_is_written_all_the_same(tmp_path: Path) -> None:
    exporter = JsonLinesExporter(tmp_path / "trace.jsonl", 1)
    exporter.export([span("first")])
    exporter.export([span("second")])
    exporter.shutdown()
    assert names_in(tmp_path / "trace.jsonl.1") == ["first"]
    assert names_in(tmp_path / "trace.jsonl") == ["second"]


def test_a_file_that_was_moved_away_and_a_place_that_is_taken_stop_nothing(tmp_path: Path) -> None:
    path, older = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.1"
    exporter = JsonLinesExporter(path, 1)
    exporter.export([span("first")])
    path.rename(tmp_path / "elsewhere")
    exporter.export([span("second")])
    assert names_in(path) == ["second"]
    older.mkdir()
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on the system
        exporter.export([span("lost")])
    older.rmdir()
    exporter.export([span("third")])
    exporter.shutdown()
    assert names_in(path) == ["third"]


def test_a_pipe_is_written_to_and_never_renamed(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    exporter = JsonLinesExporter(path, 1)
    exporter.export([span("first")])
    exporter.export([span("second")])
    exporter.shutdown()
    assert os.read(reader, 1 << 16).count(b"\n") == 2
    os.close(reader)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def names_in(file: Path) -> list[str]:
    requests = map(json.loads, file.read_text().splitlines())
    return [request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] for request in requests]


def test_a_named_pipe_that_nobody_reads_is_an_error_and_no_wait(tmp_path: Path) -> None:
    pipe = tmp_path / "trace"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody reads this pipe"):
        JsonLinesExporter(pipe, MUCH)
