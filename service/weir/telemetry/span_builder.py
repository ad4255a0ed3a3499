"""What goes through the ring, and the spans that come out of it. Everything here runs on the exporter thread."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from weir.engine.records import StepRecord
from weir.telemetry.request_spans import RequestSpans
from weir.telemetry.request_trace import RequestTrace
from weir.telemetry.step_spans import StepSpans


@dataclass(frozen=True, slots=True)
class Submitted:
    """From here on, steps that carry `request_id` link to `context`."""

    request_id: str
    context: SpanContext


TraceItem = StepRecord | Submitted | RequestTrace


class TraceSpanBuilder:
    """Items in the order they happened become spans."""

    def __init__(self, steps: StepSpans, requests: RequestSpans) -> None:
        self._steps = steps
        self._requests = requests

    def build(self, item: TraceItem) -> list[ReadableSpan]:
        """The spans of one item, ended."""
        match item:
            case StepRecord():
                return self._steps.spans(item)
            case Submitted():
                self._steps.request_submitted(item.request_id, item.context)
                return []
            case RequestTrace():
                known = self._steps.request_ended(item.request.request_id) if item.request is not None else None
                return self._requests.spans(item, known)
