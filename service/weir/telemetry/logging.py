"""Log lines as JSON or text, each with the trace it belongs to. Extra fields of a call become fields of the line."""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from weir.config import TelemetrySettings
from weir.progress import ERASE

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

# Set once in the task that serves an RPC and never reset: the task's own context ends with it.
current_span: ContextVar[SpanContext | None] = ContextVar("weir_current_span", default=None)

_STANDARD_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}
# Libraries that log once a failure where the exporter thread logs once a state.
_QUIET = ("opentelemetry", "urllib3")
# A line for each request of a download.
_TALKATIVE = ("httpx", "httpx2")
# gRPC logs a traceback for each header that is not UTF-8; whoever can connect could fill the disk with them.
_GRPC, _BY_ANYBODY = "grpc._cython.cygrpc", "Invalid encoding on "


def configure_logging(settings: TelemetrySettings, stream: TextIO | None = None) -> None:
    """Send everything from `log_level` on to `stream` (default: standard error), in `log_format`."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter(handler.stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(_GRPC).addFilter(_is_not_by_anybody)
    logging.captureWarnings(True)
    if settings.log_format == "json":
        # What the interpreter would print as lines of its own.
        sys.excepthook = lambda kind, error, trace: _log_uncaught(error, kind)
        threading.excepthook = lambda args: _log_uncaught(args.exc_value, args.exc_type)


def _log_uncaught(error: BaseException | None, kind: type[BaseException]) -> None:
    if not issubclass(kind, SystemExit):
        logging.getLogger("uncaught").critical("%s", kind.__name__, exc_info=error)


def _is_not_by_anybody(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_BY_ANYBODY)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
    context = current_span.get()
    if context is not None:
        fields["trace_id"] = f"{context.trace_id:032x}"
        fields["span_id"] = f"{context.span_id:016x}"
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, severity, logger, message, the extra fields, and the exception if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """For people: time, severity, logger, message, then the extra fields as key=value.

    on_terminal: a bar that shows progress may stand there; a line takes its place.
    """

    def __init__(self, on_terminal: bool = False) -> None:
        super().__init__()
        self._begin = ERASE if on_terminal else ""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows on lines of its own."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        extra = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = f"{self._begin}{time} {record.levelname:<7} {record.name}: {record.getMessage()}{extra}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
