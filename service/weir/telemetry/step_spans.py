"""One span for each scheduling step, linked to the request spans whose tokens it computed.

A step belongs to many requests and a request to many steps, so neither can be the other's parent: each step is the
root of its own trace, and links say who was in it. Runs on the exporter thread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from weir.engine.records import StepRecord
from weir.telemetry.engine_metrics import PHASES
from weir.telemetry.request_trace import AnchoredClock
from weir.telemetry.step_span import LinkRow, RequestSteps, StepSpan

# A cancelled request may still be in the step that was running; its links stay possible for this many later ends.
MAX_ENDED = 1024
# Ends can be lost when the ring overflows; no more requests than this are remembered.
MAX_KNOWN = 16384

StepSampler = Callable[[StepRecord], bool]


def step_sampler(kind: str, ratio: float, slow_s: float) -> StepSampler:
    """The sampler for always | ratio | slow-only | never."""
    generator = random.Random()
    samplers: dict[str, StepSampler] = {
        "always": lambda record: True,
        "ratio": lambda record: generator.random() < ratio,
        "slow-only": lambda record: record.end_ns - record.start_ns >= slow_s * 1e9,
        "never": lambda record: False,
    }
    return samplers[kind]


class StepSpans:
    """Makes the spans of a step; knows the sampled requests that steps can be linked to."""

    def __init__(
        self,
        resource: Resource,
        scope: InstrumentationScope,
        sampler: StepSampler,
        max_links: int,
        phases: bool,
        clock: AnchoredClock,
    ) -> None:
        self._clock = clock
        self._resource = resource
        self._scope = scope
        self._sampler = sampler
        self._max_links = max_links
        self._phases = phases
        self._ids = RandomIdGenerator()
        self._requests: dict[str, RequestSteps] = {}
        self._ended: deque[tuple[str, RequestSteps]] = deque()

    def request_submitted(self, request_id: str, context: SpanContext) -> None:
        """Steps that carry `request_id` link to `context` from now on."""
        self._requests[request_id] = RequestSteps(context)
        if len(self._requests) > MAX_KNOWN:
            del self._requests[next(iter(self._requests))]

    def request_ended(self, request_id: str) -> RequestSteps | None:
        """What the steps so far had of this request; it is forgotten after a while."""
        request = self._requests.get(request_id)
        if request is not None:
            self._ended.append((request_id, request))
        if len(self._ended) > MAX_ENDED:
            old_id, old = self._ended.popleft()
            if self._requests.get(old_id) is old:
                del self._requests[old_id]
        return request

    def spans(self, record: StepRecord) -> list[ReadableSpan]:
        """The span of a step, and of its phases if wanted; none when the step is not sampled."""
        rows = self._rows(record)
        if not self._sampler(record):
            return []
        context = SpanContext(
            self._ids.generate_trace_id(), self._ids.generate_span_id(), False, TraceFlags(TraceFlags.SAMPLED)
        )
        omitted = max(0, len(rows) - self._max_links)
        step = StepSpan(record, context, rows[: self._max_links], omitted, self._resource, self._scope, self._clock)
        return [step, *self._phase_spans(record, context)] if self._phases else [step]

    def _rows(self, record: StepRecord) -> list[LinkRow]:
        """The sampled requests in a step, with their tokens in it, all choices together."""
        decodes: dict[str, int] = {}
        for chunk in record.decodes:
            decodes[chunk.request_id] = decodes.get(chunk.request_id, 0) + 1
        prefills: dict[str, int] = {}
        for chunk in record.prefills:
            prefills[chunk.request_id] = prefills.get(chunk.request_id, 0) + chunk.length
        rows: list[LinkRow] = []
        for request_id in {**decodes, **prefills}:
            request = self._requests.get(request_id)
            if request is not None:
                request.add(record.step)
                rows.append((request, decodes.get(request_id, 0), prefills.get(request_id, 0)))
        return rows

    def _phase_spans(self, record: StepRecord, step: SpanContext) -> list[ReadableSpan]:
        spans, start, last = [], self._clock.at_ns(record.start_ns), self._clock.at_ns(record.end_ns)
        for phase in PHASES:
            end = min(start + int(getattr(record.phases, f"{phase}_s") * 1e9), last)
            context = SpanContext(step.trace_id, self._ids.generate_span_id(), False, step.trace_flags)
            spans.append(
                ReadableSpan(
                    f"engine.{phase}",
                    context=context,
                    parent=step,
                    resource=self._resource,
                    instrumentation_scope=self._scope,
                    start_time=start,
                    end_time=end,
                )
            )
            start = end
        return spans
