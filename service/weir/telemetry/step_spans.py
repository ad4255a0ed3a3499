"""One span for each scheduling step, linked to the request spans whose tokens it computed.

A step belongs to many requests and a request to many steps, so neither can be the other's parent: each step is the
root of its own trace, and links say who was in it. Runs on the exporter thread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, TraceFlags
from opentelemetry.util.types import AttributeValue

from weir.engine.records import ChunkRecord, StepRecord
from weir.telemetry import attributes as names
from weir.telemetry.engine_metrics import PHASES, step_kind

STEP_SPAN = "engine.step"
MAX_CHUNKS = 32
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
        "slow-only": lambda record: record.end_unix_ns - record.start_unix_ns >= slow_s * 1e9,
        "never": lambda record: False,
    }
    return samplers[kind]


@dataclass(slots=True)
class RequestSteps:
    """A request as the steps see it: its span, and which steps carried its tokens so far."""

    context: SpanContext
    count: int = 0
    first: int = 0
    last: int = 0

    def add(self, step: int) -> None:
        """`step` carried tokens of this request."""
        if self.count == 0:
            self.first = step
        self.count += 1
        self.last = step


class StepSpans:
    """Makes the spans of a step; knows the sampled requests that steps can be linked to."""

    def __init__(
        self, resource: Resource, scope: InstrumentationScope, sampler: StepSampler, max_links: int, phases: bool
    ) -> None:
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
        links = self._links(record)
        if not self._sampler(record):
            return []
        context = SpanContext(
            self._ids.generate_trace_id(), self._ids.generate_span_id(), False, TraceFlags(TraceFlags.SAMPLED)
        )
        attributes = _attributes(record)
        if len(links) > self._max_links:
            attributes[names.STEP_LINKS_OMITTED] = len(links) - self._max_links
            links = links[: self._max_links]
        step = ReadableSpan(
            STEP_SPAN,
            context=context,
            resource=self._resource,
            attributes=attributes,
            links=links,
            instrumentation_scope=self._scope,
            start_time=record.start_unix_ns,
            end_time=record.end_unix_ns,
        )
        return [step, *self._phase_spans(record, context)] if self._phases else [step]

    def _links(self, record: StepRecord) -> list[Link]:
        tokens: dict[str, tuple[int, int]] = {}
        for chunk in record.decodes:
            decode, prefill = tokens.get(chunk.request_id, (0, 0))
            tokens[chunk.request_id] = decode + 1, prefill
        for chunk in record.prefills:
            decode, prefill = tokens.get(chunk.request_id, (0, 0))
            tokens[chunk.request_id] = decode, prefill + chunk.length
        links = []
        for request_id, (decode, prefill) in tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            request.add(record.step)
            counts = {names.STEP_DECODE_TOKENS: decode, names.STEP_PREFILL_TOKENS: prefill}
            links.append(Link(request.context, {name: count for name, count in counts.items() if count}))
        return links

    def _phase_spans(self, record: StepRecord, step: SpanContext) -> list[ReadableSpan]:
        spans, start = [], record.start_unix_ns
        for phase in PHASES:
            end = min(start + int(getattr(record.phases, f"{phase}_s") * 1e9), record.end_unix_ns)
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


def _attributes(record: StepRecord) -> dict[str, AttributeValue]:
    chunks = record.prefills[:MAX_CHUNKS]
    found: dict[str, AttributeValue] = {
        names.STEP_NUMBER: record.step,
        names.STEP_KIND: step_kind(record),
        names.STEP_DECODE_TOKENS: record.decode_tokens,
        names.STEP_PREFILL_TOKENS: record.prefill_tokens,
        names.STEP_PREFIX_HIT_TOKENS: record.prefix_hit_tokens,
        names.STEP_CHUNKS: [_chunk(chunk) for chunk in chunks],
        names.STEP_ADMITTED: len(record.admitted),
        names.STEP_FINISHED: len(record.finished),
        names.STEP_PREEMPTED: len(record.preempted),
        names.STEP_REJECTED: record.rejected,
        names.RUNNING: record.running,
        names.QUEUED: record.queued,
        names.QUEUED_TOKENS: record.queued_tokens,
        names.KV_TOTAL_TOKENS: record.kv_total_tokens,
        names.KV_FREE_TOKENS: record.kv_free_tokens,
        names.KV_USED_TOKENS: record.kv_used_tokens,
        names.KV_CACHED_TOKENS: record.kv_cached_tokens,
        names.KV_RESERVED_PEAK_TOKENS: record.kv_reserved_peak_tokens,
        names.STEP_PHASE["plan"]: record.phases.plan_s,
        names.STEP_PHASE["launch"]: record.phases.launch_s,
        names.STEP_PHASE["device"]: record.phases.device_s,
        names.STEP_PHASE["collect"]: record.phases.collect_s,
        names.STEP_PHASE["emit"]: record.phases.emit_s,
    }
    if len(record.prefills) > MAX_CHUNKS:
        found[names.STEP_CHUNKS_OMITTED] = len(record.prefills) - MAX_CHUNKS
    return found


def _chunk(chunk: ChunkRecord) -> str:
    return f"{chunk.request_id}[{chunk.choice}] {chunk.start}+{chunk.length}"
