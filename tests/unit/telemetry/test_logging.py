"""Log lines as a collector and as a person read them."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from weir.config import Settings, TelemetrySettings
from weir.telemetry.logging import configure_logging, current_span
from weir.telemetry.telemetry import Telemetry

from tests.unit.telemetry.factories import GENERATE


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, hooks = list(root.handlers), root.level, (sys.excepthook, threading.excepthook)
    yield io.StringIO()
    sys.excepthook, threading.excepthook = hooks
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_has_the_fields_of_the_call_and_the_trace_of_the_request(stream: io.StringIO) -> None:
    configure_logging(TelemetrySettings(log_format="json"), stream)
    token = current_span.set(None)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    observer = Telemetry(Settings(), "tiny").request_started(
        GENERATE, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    )
    logging.getLogger("weir.server").info("drain %s", "begins", extra={"live": 3})
    current_span.reset(token)
    observer.finished("OK", None)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert len(line.pop("span_id")) == 16
    assert line == {
        "severity": "INFO",
        "logger": "weir.server",
        "message": "drain begins",
        "live": 3,
        "trace_id": trace,
    }


def test_an_exception_stays_on_one_json_line(stream: io.StringIO) -> None:
    configure_logging(TelemetrySettings(log_format="json"), stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("weir").exception("failed")
    [text] = stream.getvalue().splitlines()
    assert "ValueError: two\nlines" in json.loads(text)["exception"]


def test_a_text_line_is_for_people(stream: io.StringIO) -> None:
    configure_logging(TelemetrySettings(log_format="text", log_level="warning"), stream)
    logging.getLogger("weir.server").info("too quiet")
    logging.getLogger("weir.server").warning("queue is full", extra={"queued_tokens": 9})
    assert stream.getvalue()[13:] == "WARNING weir.server: queue is full queued_tokens=9\n"


def test_libraries_do_not_repeat_what_the_exporter_thread_says_once(stream: io.StringIO) -> None:
    configure_logging(TelemetrySettings(log_level="debug"), stream)
    logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").error("Failed to export traces")
    assert stream.getvalue() == ""


def test_a_header_that_is_not_utf8_writes_no_traceback(stream: io.StringIO) -> None:
    """gRPC logs one for each, and anybody can send them, without a token too."""
    configure_logging(TelemetrySettings(log_level="debug"), stream)
    grpc_log = logging.getLogger("grpc._cython.cygrpc")
    try:
        b"\xff".decode()
    except UnicodeDecodeError:
        grpc_log.exception("Invalid encoding on %s", b"\xff")
    assert stream.getvalue() == ""
    grpc_log.error("something else")
    assert "something else" in stream.getvalue()
