"""Spans as OTLP/JSON, one export request a line: the file format that the OpenTelemetry collector reads back."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode

_KIND = {kind: kind.value + 1 for kind in SpanKind}
_STATUS = {StatusCode.UNSET: 0, StatusCode.OK: 1, StatusCode.ERROR: 2}


class JsonLinesExporter(SpanExporter):
    """Appends to a file. Raises OSError at the start when it cannot be written, and at an export when it is full.

    max_bytes: a file that the next line would make larger is renamed to FILE.1, in place of the last one, so that both
    together stay below twice as much.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = open_to_append(path)
        self._is_regular = path.is_file()  # a pipe or a terminal has no size

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one line."""
        line = json.dumps(_request(spans), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        if self._is_regular and 0 < self._file.tell() > self._max_bytes - len(line):
            self._rotate()
        self._file.write(line)
        self._file.flush()
        return SpanExportResult.SUCCESS

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):  # somebody else has moved it away
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        full, self._file = self._file, open_to_append(self._path)
        full.close()

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


def check_appendable(path: Path) -> None:
    """Raise the OSError that an exporter to this file would, and change nothing."""
    if path.exists():
        open_to_append(path).close()
    elif not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no file can be made in", str(path.parent))


def open_to_append(path: Path) -> BinaryIO:
    """The file, made if need be. Raises OSError, also for a pipe that nobody reads, which would hold up the start."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe", str(path)) from None
        raise
    os.set_blocking(handle, True)
    return os.fdopen(handle, "ab")


def _request(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    scope = spans[0].instrumentation_scope
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(spans[0].resource.attributes)},
                "scopeSpans": [
                    {
                        "scope": {"name": scope.name, "version": scope.version} if scope is not None else {},
                        "spans": [_span(span) for span in spans],
                    }
                ],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    fields: dict[str, Any] = {
        **_identity(context),
        "name": span.name,
        "kind": _KIND[span.kind],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes),
        "events": [
            {"timeUnixNano": str(event.timestamp), "name": event.name, "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "links": [_link(link) for link in span.links],
        "status": {"code": _STATUS[span.status.status_code]},
    }
    if span.parent is not None:
        fields["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.status.description:
        fields["status"]["message"] = span.status.description
    return fields


def _link(link: Link) -> dict[str, Any]:
    return {**_identity(link.context), "attributes": _attributes(link.attributes)}


def _identity(context: SpanContext) -> dict[str, str]:
    identity = {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}
    if context.trace_state:
        identity["traceState"] = context.trace_state.to_header()
    return identity


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
    raise TypeError(f"not an attribute value: {value!r}")
